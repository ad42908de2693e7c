"""Schedules that were predicted, and checked, by an earlier run with nothing measured: kept in the user's cache.

In: a task and the choice made for it. Out: the choice again, without sketches, formulas or a check. An entry holds for
the same task and target, machine, seed, design space, weights and versions of all code; one that is damaged, or that
TVM does not take any more, counts as absent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

from felixlike._util import cache
from felixlike.costmodel import CostModel
from felixlike.hardware import target_device
from felixlike.search import Candidate
from felixlike.symbolic import kept_sketch, sketch_data
from felixlike.tuning.state import TaskState

_KIND = "predicted"


@dataclass(frozen=True, slots=True)
class Kept:
    """candidate: that was chosen.  error: found by its check.  sketches: of the task.  sampled: those that are not
    understood, by index, and why."""

    candidate: Candidate
    error: float | None
    sketches: int
    sampled: dict[str, str]


class Predictions:
    """The entries of one kind of run.  seed: the run's.  model: as it came, before it learnt from measurements."""

    def __init__(self, model: CostModel, *, seed: int) -> None:
        self._model, self._seed = model, seed

    def find(self, state: TaskState) -> Kept | None:
        """What is kept of a task, ready to be compiled."""
        entry = cache.load(_KIND, self._key(state))
        if entry is None:
            return None
        try:
            kept = _read(state, entry)
            kept.candidate.module()
        except Exception:  # whatever a damaged entry leads to, there is another way
            return None
        return kept

    def keep(self, state: TaskState, candidate: Candidate, error: float | None) -> None:
        """Remember what was chosen of a task's space."""
        if state.faults or candidate.key in state.known.seen:
            return  # another time nothing may be amiss; what was measured is in a store
        sketches = state.space.sketches
        entry = {
            **sketch_data(candidate.sketch),
            "point": list(candidate.point),
            "score": None if math.isnan(candidate.score) else candidate.score,
            "error": error,
            "sketches": len(sketches),
            "sampled": state.sampled,
        }
        cache.store(_KIND, self._key(state), entry)

    def _key(self, state: TaskState) -> str:
        task = state.task
        return cache.digest(repr((self._common, task.key, target_device(task.target), state.space_name)))

    @cached_property
    def _common(self) -> tuple[Any, ...]:
        packages = ("apache-tvm", "apache-tvm-ffi")
        versions = [metadata.version(package) for package in packages]
        return cache.sources(), versions, self._model.version(), self._seed


def _read(state: TaskState, entry: Any) -> Kept:
    """Raises whatever it trips over."""
    sketch = kept_sketch(state.task, entry)
    point = tuple(int(number) for number in entry["point"])
    score, error = entry["score"], entry["error"]
    return Kept(
        Candidate(sketch, point, math.nan if score is None else float(score), "predicted"),
        None if error is None else float(error),
        int(entry["sketches"]),
        {str(index): str(reason) for index, reason in entry["sampled"].items()},
    )
