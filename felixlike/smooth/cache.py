"""Cache smooth programs on disk, keyed by the formulas, the rules, and the versions that produced them.

Input: expressions. Output: a stored `SmoothGraph` or None.
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
    """Return a key that equal formulas share in every process, independent of what the process built before."""
    digests: dict[Expr, str] = {}
    for node in topological(roots):
        digests[node] = cache.digest(repr((node.op.name, *_parts(node, [digests[a] for a in node.args]))))
    rules = (VERSION, metadata.version("egglog"), program(), sorted(shifted))
    return cache.digest(repr((rules, [digests[root] for root in roots])))


def _parts(node: Expr, args: list[str]) -> tuple[object, ...]:
    """Return the parts of a node, for its digest.

    Terms of sums and products are ordered by their creation, which differs between processes, so they are sorted here.
    """
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
    """Return the entry, or None if it is missing or damaged."""
    try:
        return SmoothGraph.from_json(cache.load(_KIND, key))
    except (ValueError, InvalidGraph):
        return None


def store(key: str, graph: SmoothGraph) -> None:
    """Write an entry atomically."""
    cache.store(_KIND, key, graph.to_json())
