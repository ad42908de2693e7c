"""Smooth programs on disk, keyed by the formulas, the rules and the versions that made them.

In: expressions. Out: a stored `SmoothGraph` or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from felixlike._util import cache
from felixlike.errors import InvalidGraph
from felixlike.smooth.graph import SmoothGraph
from felixlike.smooth.rules import VERSION, program
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.expr.node import Op
from felixlike.symbolic.expr.traversal import topological

_KIND = "smooth"


def cache_key(roots: Sequence[Expr], shifted: frozenset[str]) -> str:
    """The same for equal formulas in every process, whatever else it made before."""
    known: dict[Expr, str] = {}
    for node in topological(roots):
        known[node] = cache.digest(repr((node.op.name, *_parts(node, [known[a] for a in node.args]))))
    rules = (VERSION, metadata.version("egglog"), program(), sorted(shifted))
    return cache.digest(repr((rules, [known[root] for root in roots])))


def _parts(node: Expr, args: list[str]) -> tuple[object, ...]:
    """What a node is made of. Terms of sums and products stand in the order of their creation, which differs between
    processes; here they are sorted."""
    match node.op:
        case Op.ADD:
            return node.payload[0], sorted(zip(args, node.payload[1:], strict=True))
        case Op.MUL:
            return (sorted(zip(args, node.payload, strict=True)),)
        case Op.MIN | Op.MAX:
            return (sorted(args),)
        case _:
            return node.payload, args


def load(key: str) -> SmoothGraph | None:
    """The entry, or None."""
    try:
        return SmoothGraph.from_json(cache.load(_KIND, key))
    except (ValueError, InvalidGraph):
        return None


def store(key: str, graph: SmoothGraph) -> None:
    """Write an entry, whole or not at all."""
    cache.store(_KIND, key, graph.to_json())
