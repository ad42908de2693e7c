"""What a report knows of a task beside its table: how the best came about, what was predicted, how it looks.

In: what a run has measured, the modules chosen from. Out: `TaskHistory`: a few hundred numbers at most, so that
artefacts stay small, and its JSON.
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
"""Predictions kept of a task, evenly over the run: enough to see whether they were any good."""

_DEEPEST = 64
"""Loops within loops; a schedule has some twenty."""

_EXACT = 4
"""Digits kept of seconds and scores."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate.  score: predicted, the higher the faster.  latency: measured, seconds a call."""

    score: float
    latency: float


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """steps: each new best, at seconds of the run; the first at none of its candidates is what earlier runs had found.
    pairs: predicted and measured.  chosen, untuned: loops of the schedule chosen, and of the function as it came; empty
    where not known.  building, running: seconds that processes side by side took for the task's candidates."""

    steps: tuple[Step, ...] = ()
    pairs: tuple[Pair, ...] = ()
    chosen: Nodes = ()
    untuned: Nodes = ()
    building: float = 0.0
    running: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data; empty for an empty story."""
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
        """The inverse.  place: of the data, for messages.  Raises InvalidArtefact."""
        if not isinstance(data, dict):
            raise damaged(place, f"is {shown(data)}, not an object")
        if not data:
            return TaskHistory()
        unknown = sorted(set(data) - set(TaskHistory.__dataclass_fields__))
        if unknown:
            raise damaged(f"{place}.{unknown[0]}", "is not known")
        steps = _rows(data.get("steps"), 3, f"{place}.steps")
        pairs = _rows(data.get("pairs"), 2, f"{place}.pairs")
        for name in ("building", "running"):
            if not is_number(data.get(name)):
                raise damaged(f"{place}.{name}", f"is {shown(data.get(name))}, which is no number")
        counted = all(count == int(count) >= 0 and 0 <= at <= 1e9 for count, at, _ in steps)
        drawable = all(is_latency(row[-1]) for row in (*steps, *pairs)) and all(is_score(score) for score, _ in pairs)
        if not (counted and drawable):
            raise damaged(f"{place}.steps", "or its pairs have numbers that none can be")
        return TaskHistory(
            steps=tuple(Step(int(count), at, best) for count, at, best in steps),
            pairs=tuple(Pair(score, latency) for score, latency in pairs),
            chosen=_nodes_from(data.get("chosen"), f"{place}.chosen", _DEEPEST),
            untuned=_nodes_from(data.get("untuned"), f"{place}.untuned", _DEEPEST),
            building=float(data["building"]),
            running=float(data["running"]),
        )


def task_history_of(history: History, *, chosen: Nodes, untuned: Nodes) -> TaskHistory:
    """The story of a task that a run has worked on."""
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
    """The candidates with a prediction and a time, at most so many, evenly over them all."""
    known = [(s, t) for s, t in zip(scores, latencies, strict=True) if is_score(s) and is_latency(t)]
    if not known:
        return ()
    places = np.unique(np.linspace(0, len(known) - 1, min(most, len(known))).round().astype(int))
    return tuple(Pair(_short(known[i][0]), _short(known[i][1])) for i in places)


def _short(number: float) -> float:
    return float(f"{number:.{_EXACT}g}")


def _nodes_json(nodes: Nodes) -> list[Any]:
    """A statement is its text; a loop [name, kind, extent, unroll, what is inside]."""
    return [
        node.text
        if isinstance(node, Statement)
        else [node.name, node.kind, node.extent, node.unroll, _nodes_json(node.body)]
        for node in nodes
    ]


def _nodes_from(data: Any, place: str, depth: int) -> Nodes:
    if not isinstance(data, list) or depth < 0:
        raise damaged(place, f"is {shown(data)}, which are no loops")
    return tuple(_node_from(node, place, depth) for node in data)


def _node_from(data: Any, place: str, depth: int) -> LoopNode | Statement:
    if isinstance(data, str):
        return Statement(data)
    if isinstance(data, list) and len(data) == 5:
        name, kind, extent, unroll, body = data
        numbers = is_whole(extent) and is_whole(unroll)
        if isinstance(name, str) and isinstance(kind, str) and numbers:
            return LoopNode(name, kind, extent, unroll, _nodes_from(body, place, depth - 1))
    raise damaged(place, f"has {shown(data)}, which is no loop")


def _rows(data: Any, width: int, place: str) -> list[list[float]]:
    """Lists of so many finite numbers."""
    if isinstance(data, list) and all(
        isinstance(row, list) and len(row) == width and all(is_number(number) for number in row) for row in data
    ):
        return data
    raise damaged(place, f"is {shown(data)}, which are no numbers")
