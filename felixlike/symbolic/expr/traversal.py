"""Traverse expressions, and rebuild them with other arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from felixlike.symbolic.expr.expression import Expr, as_expr, restore
from felixlike.symbolic.expr.node import Number, Op


def variables(roots: Iterable[Expr]) -> tuple[Expr, ...]:
    """Return the variables that occur, in the order of their creation."""
    return tuple(e for e in topological(roots) if e.op is Op.VAR)


def topological(roots: Iterable[Expr]) -> list[Expr]:
    """Return every node reachable from the roots, arguments first."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(node.args)
    return sorted(seen, key=lambda e: e.order)


def substitute(expr: Expr, values: Mapping[Expr, Expr | Number]) -> Expr:
    """Return expr with variables replaced; nodes are rebuilt and simplified."""
    done: dict[Expr, Expr] = {v: as_expr(e) for v, e in values.items()}
    for node in topological([expr]):
        if node not in done:
            done[node] = rebuild(node, tuple(done[a] for a in node.args))
    return done[expr]


def rebuild(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """Return the node's operator applied to other arguments."""
    if args == node.args:
        return node
    return restore(node.op, args, node.payload)
