"""Run equality saturation: find the cheapest smooth program for all formulas in one e-graph.

Input: expressions. Output: a `SmoothGraph` whose roots are log(1 + expression), smooth. egglog does the rewriting. The
best terms are read from the serialised e-graph as a graph, because egglog's own extraction writes trees, which deep
sharing makes very large.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike._util import scratch
from felixlike.errors import NoSmoothForm
from felixlike.smooth.encode import Encoder
from felixlike.smooth.graph import SmoothGraph, SmoothNode
from felixlike.smooth.rules import COSTS, program
from felixlike.symbolic.expr.expression import Expr


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """Limit equality saturation.

    Attributes:
        iterations: The maximum number of applications of all rules.
        nodes: The size of the e-graph, in nodes, after which rewriting stops.
    """

    iterations: int = 200
    nodes: int = 200_000


def saturate(
    roots: Sequence[Expr], *, shifted: frozenset[str] = frozenset(), limits: SaturationLimits | None = None
) -> SmoothGraph:
    """Return the smooth program of log(1 + root) for every root.

    Args:
        roots: The expressions.
        shifted: Variables that may be 0; their column is log(1 + value).
        limits: Limits on rewriting. Default: `SaturationLimits()`.

    Returns:
        The smooth program. Its `saturated` is False if a limit was reached.

    Raises:
        NoSmoothForm: If a formula has no smooth form when rewriting stops.
    """
    from egglog import bindings

    limits = limits if limits is not None else SaturationLimits()
    encoder = Encoder(shifted)
    numbers = encoder.encode(roots)
    with scratch.temporary("egglog") as folder:
        egraph = bindings.EGraph(fact_directory=str(folder))
        text = f"{program()}\n{encoder.write(folder, numbers)}\n(run-schedule (saturate (run load)))"
        egraph.run_program(*egraph.parse_program(text))
    saturated = _run(egraph, limits)
    classes = json.loads(egraph.serialize([]).to_json())["nodes"]
    return _extract(classes, len(roots), saturated)


def _run(egraph: Any, limits: SaturationLimits) -> bool:
    """Apply the rules until nothing changes (True) or a limit is reached (False)."""
    step = egraph.parse_program("(run-schedule (run rules))")
    for _ in range(limits.iterations):
        (outcome,) = egraph.run_program(*step)
        if not outcome.report.updated:
            return True
        if _size(egraph) > limits.nodes:
            return False
    return False


def _size(egraph: Any) -> int:
    """Return the number of rows in the e-graph, without the loaded facts."""
    functions = egraph.freeze().functions
    return sum(len(function.rows) for name, function in functions.items() if not name.startswith("Fact"))


class _Candidate:
    """Describe a node of the e-graph that can be part of a smooth program."""

    __slots__ = ("children", "missing", "name", "op", "owner", "value")

    def __init__(self, op: str, owner: str, children: list[str], value: float, name: str) -> None:
        self.op, self.owner, self.children, self.value, self.name = op, owner, children, value, name
        self.missing = len(children)


def _extract(nodes: dict[str, dict[str, object]], count: int, saturated: bool) -> SmoothGraph:
    """Choose the cheapest node of every class, bottom-up, by the cost of the tree below it."""
    candidates, roots = _read(nodes)
    best: dict[str, tuple[float, _Candidate]] = {}
    users: dict[str, list[_Candidate]] = {}
    ready: list[_Candidate] = []
    for candidate in candidates:
        for child in candidate.children:
            users.setdefault(child, []).append(candidate)
        if not candidate.children:
            ready.append(candidate)
    while ready:
        improved: dict[str, None] = {}
        for candidate in ready:
            cost = COSTS[candidate.op] + sum(best[c][0] for c in candidate.children)
            if candidate.owner not in best or cost < best[candidate.owner][0]:
                best[candidate.owner] = (cost, candidate)
                improved[candidate.owner] = None
        ready = [u for owner in improved for u in users.get(owner, ()) if all(c in best for c in u.children)]
    missing = [i for i in range(count) if roots.get(i) not in best]
    if missing:
        raise NoSmoothForm(
            f"no smoothing rule covers formula {missing[0]}"
            if saturated
            else f"rewriting reached its limit before formula {missing[0]} was smooth",
            where="smooth",
            remedy="report this as a bug" if saturated else "increase SaturationLimits",
        )
    return _graph(best, [roots[i] for i in range(count)], saturated)


def _read(nodes: dict[str, dict[str, object]]) -> tuple[list[_Candidate], dict[int, str]]:
    """Return the nodes that are smooth operators, and the class of every root."""
    candidates: list[_Candidate] = []
    roots: dict[int, str] = {}
    for node in nodes.values():
        op, owner = str(node["op"]), str(node["eclass"])
        children = [nodes[c] for c in node["children"]]  # type: ignore[attr-defined]
        if op == "Root":
            roots[int(str(children[0]["op"]))] = owner
        elif op == "Constant":
            candidates.append(_Candidate(op, owner, [], float(str(children[0]["op"])), ""))
        elif op == "Column":
            candidates.append(_Candidate(op, owner, [], 0.0, str(children[0]["op"]).strip('"')))
        elif op in COSTS:
            candidates.append(_Candidate(op, owner, [str(c["eclass"]) for c in children], 0.0, ""))
    return candidates, roots


def _graph(best: dict[str, tuple[float, _Candidate]], roots: list[str], saturated: bool) -> SmoothGraph:
    """Return the chosen nodes that the roots need, arguments first."""
    position: dict[str, int] = {}
    ordered: list[SmoothNode] = []
    stack = list(reversed(roots))
    while stack:
        owner = stack[-1]
        candidate = best[owner][1]
        pending = [c for c in candidate.children if c not in position]
        if owner in position:
            stack.pop()
        elif pending:
            stack += pending
        else:
            args = tuple(position[c] for c in candidate.children)
            position[owner] = len(ordered)
            ordered.append(SmoothNode(candidate.op, args, candidate.value, candidate.name))
            stack.pop()
    return SmoothGraph(tuple(ordered), tuple(position[r] for r in roots), saturated)
