"""The nodes below expressions, and expressions built again of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from felixlike.algebra.comparison import at_least, maximum, minimum, select
from felixlike.algebra.expression import Expr, Number, Op, Payload, add, as_expr, const, floordiv, mul, power, var


def variables(roots: Iterable[Expr]) -> tuple[Expr, ...]:
    """The variables that occur, in the order of their creation."""
    return tuple(e for e in topological(roots) if e.op is Op.VAR)


def topological(roots: Iterable[Expr]) -> list[Expr]:
    """Every node reachable from the roots, arguments first."""
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
    """expr with variables replaced; nodes are rebuilt and simplified anew."""
    done: dict[Expr, Expr] = {v: as_expr(e) for v, e in values.items()}
    for node in topological([expr]):
        if node not in done:
            done[node] = rebuild(node, tuple(done[a] for a in node.args))
    return done[expr]


def rebuild(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """The node's operator applied to other arguments."""
    if args == node.args:
        return node
    return restore(node.op, args, node.payload)


def restore(op: Op, args: tuple[Expr, ...], payload: Payload) -> Expr:
    """The node with these parts, made by the constructors, so that it is simplified, and shared when unpickled too."""
    match op:
        case Op.CONST:
            return const(payload[0])  # type: ignore[arg-type]
        case Op.VAR:
            return var(*payload)  # type: ignore[arg-type]
        case Op.ADD:
            numbers: tuple[Number, ...] = payload  # type: ignore[assignment]
            return add([numbers[0], *(mul((c, a)) for c, a in zip(numbers[1:], args, strict=True))])
        case Op.MUL:
            return mul(power(a, e) for a, e in zip(args, payload, strict=True))  # type: ignore[arg-type]
        case Op.AT_LEAST:
            return at_least(args[0], payload[0])  # type: ignore[arg-type]
        case Op.FLOORDIV:
            return floordiv(*args)
        case Op.MIN:
            return minimum(*args)
        case Op.MAX:
            return maximum(*args)
        case Op.SELECT:
            return select(*args)
