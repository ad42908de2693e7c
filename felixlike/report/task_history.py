"""Record the history of a task for its pictures: the best latencies over time, predictions, and loops.

Inputs: measurements of a run, the chosen modules. Output: `TaskHistory` and its JSON. It holds a few hundred numbers at
most, so that artefacts stay small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from felixlike.report.curves import Series, Step
from felixlike.report.validation import damaged, is_latency, is_number, is_score, is_whole, shown
from felixlike.symbolic.program.tree import LoopNode, Nodes, Statement

if TYPE_CHECKING:
    from felixlike.tuning import History

MOST_PAIRS = 64
"""Upper limit on the predictions kept per task, spread evenly over the run. Chosen by hand: enough to judge the cost
model.
"""

_DEEPEST = 64
"""Upper limit on nested loops. Chosen by hand; schedules have about 20."""

_EXACT = 4
"""Significant digits of seconds and scores. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The prediction and the measurement of one candidate.

    Attributes:
        score: Predicted score; higher is faster.
        latency: Measured seconds per call.
    """

    score: float
    latency: float


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The history of one task.

    Attributes:
        steps: Each new best, at seconds of the run. A first step with 0 candidates is the best of earlier runs.
        pairs: Predictions and measurements.
        chosen: Loops of the chosen schedule; empty if unknown.
        untuned: Loops of the function without a schedule; empty if unknown.
        building: Seconds that parallel processes spent on building the task's candidates.
        running: Seconds that parallel processes spent on running them.
    """

    steps: tuple[Step, ...] = ()
    pairs: tuple[Pair, ...] = ()
    chosen: Nodes = ()
    untuned: Nodes = ()
    building: float = 0.0
    running: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the history as plain data; empty for an empty history."""
        if self == TaskHistory():
            return {}
        return {
            "steps": [[step.candidates, step.seconds, step.latency] for step in self.steps],
            "pairs": [[pair.score, pair.latency] for pair in self.pairs],
            "chosen": _nodes_json(self.chosen),
            "untuned": _nodes_json(self.untuned),
            "building": self.building,
            "running": self.running,
        }

    @staticmethod
    def from_json(data: Any, place: str) -> TaskHistory:
        """Create a history from the data of `to_json`. place: name of the data in messages. Raise InvalidArtefact if
        invalid.
        """
        if not isinstance(data, dict):
            raise damaged(place, f"is {shown(data)}, not an object")
        if not data:
            return TaskHistory()
        unknown = sorted(set(data) - set(TaskHistory.__dataclass_fields__))
        if unknown:
            raise damaged(f"{place}.{unknown[0]}", "is an unknown field")
        steps = _rows(data.get("steps"), 3, f"{place}.steps")
        pairs = _rows(data.get("pairs"), 2, f"{place}.pairs")
        for name in ("building", "running"):
            if not is_number(data.get(name)):
                raise damaged(f"{place}.{name}", f"is {shown(data.get(name))}, expected a number")
        counted = all(count == int(count) >= 0 and 0 <= at <= 1e9 for count, at, _ in steps)
        drawable = all(is_latency(row[-1]) for row in (*steps, *pairs)) and all(is_score(score) for score, _ in pairs)
        if not (counted and drawable):
            raise damaged(place, "has steps or pairs with numbers out of range")
        return TaskHistory(
            steps=tuple(Step(int(count), at, best) for count, at, best in steps),
            pairs=tuple(Pair(score, latency) for score, latency in pairs),
            chosen=_nodes_from(data.get("chosen"), f"{place}.chosen", _DEEPEST),
            untuned=_nodes_from(data.get("untuned"), f"{place}.untuned", _DEEPEST),
            building=float(data["building"]),
            running=float(data["running"]),
        )


def task_history_of(history: History, *, chosen: Nodes, untuned: Nodes) -> TaskHistory:
    """Return the history of a task that a run has tuned."""
    series = Series(history.elapsed, history.latency)
    steps = [step for step in series.steps() if is_latency(step.latency) and step.latency < history.known]
    if is_latency(history.known):
        steps = [Step(0, 0.0, history.known), *steps]
    return TaskHistory(
        steps=tuple(Step(step.candidates, _short(step.seconds), _short(step.latency)) for step in steps),
        pairs=thinned(history.score, history.latency),
        chosen=chosen,
        untuned=untuned,
        building=_short(history.building),
        running=_short(history.running),
    )


def thinned(scores: Sequence[float], latencies: Sequence[float], most: int = MOST_PAIRS) -> tuple[Pair, ...]:
    """Return at most `most` candidates with a prediction and a latency, spread evenly over all of them."""
    known = [(s, t) for s, t in zip(scores, latencies, strict=True) if is_score(s) and is_latency(t)]
    if not known:
        return ()
    places = np.unique(np.linspace(0, len(known) - 1, min(most, len(known))).round().astype(int))
    return tuple(Pair(_short(known[i][0]), _short(known[i][1])) for i in places)


def _short(number: float) -> float:
    """Round a number to `_EXACT` significant digits."""
    return float(f"{number:.{_EXACT}g}")


def _nodes_json(nodes: Nodes) -> list[Any]:
    """Return loops as plain data: a statement as its text, a loop as [name, kind, extent, unroll, body]."""
    return [
        node.text
        if isinstance(node, Statement)
        else [node.name, node.kind, node.extent, node.unroll, _nodes_json(node.body)]
        for node in nodes
    ]


def _nodes_from(data: Any, place: str, depth: int) -> Nodes:
    """Create loops from plain data. Raise InvalidArtefact if the data is invalid or nested too deeply."""
    if not isinstance(data, list) or depth < 0:
        raise damaged(place, f"is {shown(data)}, expected a list of at most {_DEEPEST} nested loops")
    return tuple(_node_from(node, place, depth) for node in data)


def _node_from(data: Any, place: str, depth: int) -> LoopNode | Statement:
    """Create a loop or a statement from plain data. Raise InvalidArtefact if invalid."""
    if isinstance(data, str):
        return Statement(data)
    if isinstance(data, list) and len(data) == 5:
        name, kind, extent, unroll, body = data
        numbers = is_whole(extent) and is_whole(unroll)
        if isinstance(name, str) and isinstance(kind, str) and numbers:
            return LoopNode(name, kind, extent, unroll, _nodes_from(body, place, depth - 1))
    raise damaged(place, f"contains {shown(data)}, which is not a loop")


def _rows(data: Any, width: int, place: str) -> list[list[float]]:
    """Return the data if it is a list of rows of `width` finite numbers; else raise InvalidArtefact."""
    if isinstance(data, list) and all(
        isinstance(row, list) and len(row) == width and all(is_number(number) for number in row) for row in data
    ):
        return data
    raise damaged(place, f"is {shown(data)}, expected rows of {width} numbers")
