"""A smooth program: the extracted form of a set of formulas, before it becomes torch code.

In: what equality saturation chose. Out: `SmoothGraph`, plain data that can be stored as JSON and lowered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.errors import InvalidGraph


@dataclass(frozen=True, slots=True)
class SmoothNode:
    """op: an operator of `rules.COSTS`.  args: positions of the arguments, all before this node.
    value: the number of a Constant.  name: the variable of a Column."""

    op: str
    args: tuple[int, ...] = ()
    value: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class SmoothGraph:
    """nodes: arguments first.  roots: one position per formula, in the order given.
    saturated: whether the rules had nothing more to add when rewriting stopped; else a limit stopped it."""

    nodes: tuple[SmoothNode, ...]
    roots: tuple[int, ...]
    saturated: bool

    def to_json(self) -> dict[str, object]:
        """Lists and numbers only."""
        return {
            "nodes": [[n.op, list(n.args), n.value, n.name] for n in self.nodes],
            "roots": list(self.roots),
            "saturated": self.saturated,
        }

    @staticmethod
    def from_json(data: Any) -> SmoothGraph:
        """The inverse of `to_json`. Raises InvalidGraph for anything else."""
        try:
            nodes = tuple(
                SmoothNode(str(op), tuple(int(a) for a in args), float(value), str(name))
                for op, args, value, name in data["nodes"]
            )
            roots = tuple(int(r) for r in data["roots"])
            saturated = bool(data["saturated"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidGraph("a stored smooth program is damaged", where=type(error).__name__) from error
        if any(a >= i or a < 0 for i, node in enumerate(nodes) for a in node.args) or any(
            not 0 <= r < len(nodes) for r in roots
        ):
            raise InvalidGraph("a stored smooth program refers to nodes it does not have", where="smooth cache")
        return SmoothGraph(nodes, roots, saturated)
