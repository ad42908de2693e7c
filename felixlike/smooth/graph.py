"""Define smooth programs: the extracted form of a set of formulas, before it becomes torch code.

Input: the terms that equality saturation chose. Output: `SmoothGraph`, plain data that can be stored as JSON and
lowered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.errors import InvalidGraph


@dataclass(frozen=True, slots=True)
class SmoothNode:
    """Apply an operator to earlier nodes.

    Attributes:
        op: An operator of `rules.COSTS`.
        args: Positions of the arguments, all before this node.
        value: The number of a Constant.
        name: The variable of a Column.
    """

    op: str
    args: tuple[int, ...] = ()
    value: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class SmoothGraph:
    """Hold the nodes of a smooth program.

    Attributes:
        nodes: The nodes, arguments first.
        roots: One position per formula, in the order of the formulas.
        saturated: Whether rewriting stopped because no rule added anything; if False, a limit stopped it.
    """

    nodes: tuple[SmoothNode, ...]
    roots: tuple[int, ...]
    saturated: bool

    def to_json(self) -> dict[str, object]:
        """Return the graph as lists, numbers, strings and booleans."""
        return {
            "nodes": [[n.op, list(n.args), n.value, n.name] for n in self.nodes],
            "roots": list(self.roots),
            "saturated": self.saturated,
        }

    @staticmethod
    def from_json(data: Any) -> SmoothGraph:
        """Rebuild a graph from the result of `to_json`.

        Raises:
            InvalidGraph: If the data is not a graph.
        """
        try:
            nodes = tuple(
                SmoothNode(str(op), tuple(int(a) for a in args), float(value), str(name))
                for op, args, value, name in data["nodes"]
            )
            roots = tuple(int(r) for r in data["roots"])
            saturated = bool(data["saturated"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidGraph(f"a cached program is damaged: {error!r}", where="smooth cache") from error
        if any(a >= i or a < 0 for i, node in enumerate(nodes) for a in node.args) or any(
            not 0 <= r < len(nodes) for r in roots
        ):
            raise InvalidGraph("a cached program refers to a missing node", where="smooth cache")
        return SmoothGraph(nodes, roots, saturated)
