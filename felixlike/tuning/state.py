"""What is known of one task during a run, and how it goes on with less where something of ours fails.

In: a task. Out: `TaskState`. Whatever a rule, a sketch or a formula raises by mistake is noted and done without: one
task's mistake is no reason to end the search of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from felixlike._util.deadline import Deadline, OutOfTime
from felixlike.errors import first_line
from felixlike.frontend import Task
from felixlike.measure import Measurement
from felixlike.search import Candidate, Key, Measured, Observations, Progress, Space, Strategy
from felixlike.symbolic import SpaceName
from felixlike.tuning.history import History

if TYPE_CHECKING:
    from felixlike.measure.interface import Checked
    from felixlike.tuning.predictions import Kept


@dataclass(slots=True)
class TaskState:
    """One task during a run.  measured: the Measurement of each known right candidate, by its key.
    trials: candidates measured in this run.  failures: how many of them were not right, by status.  recalled,
    recalled_failures: the same of earlier runs, as the store has them.  unverifiable: why
    answers cannot be checked, hence schedules not be used; empty where they can. rounds: full ones, of earlier runs
    too. interrupted: what an earlier run had measured of the round it was stopped in. faults: what failed by mistakes
    of ours, in words; the task has gone on with less. predicted: what is worth a check with nothing measured, the best
    first, once that is known; first_check: what came of the first. kept: what an earlier run has chosen so.
    history: what this run has measured.  deadline: the run's."""

    task: Task
    rng: np.random.Generator
    known: Observations = field(default_factory=Observations)
    progress: Progress = field(default_factory=lambda: Progress(1.0))
    measured: dict[tuple[str, tuple[int, ...]], Measurement] = field(default_factory=dict)
    trials: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    recalled: int = 0
    recalled_failures: int = 0
    unverifiable: str = ""
    faults: list[str] = field(default_factory=list)
    rounds: int = 0
    interrupted: frozenset[Key] = frozenset()
    space_name: str = SpaceName.BEST
    predicted: list[Candidate] | None = None
    first_check: Checked | None = None
    kept: Kept | None = None
    history: History = field(default_factory=History)
    deadline: Deadline = field(default_factory=Deadline)
    _space: Space | None = None

    @property
    def space(self) -> Space:
        """The task's sketches, made when first needed."""
        if self._space is None:
            self._space = Space(self.task, self.space_name, on_error=self.fault, deadline=self.deadline)
        return self._space

    @property
    def sampled(self) -> dict[str, str]:
        """Sketches that are only sampled, by index, and why."""
        return {str(s.index): s.reason or "its formulas failed" for s in self.space.opaque}

    def fault(self, error: Exception) -> None:
        """Note what failed by a mistake of ours."""
        words = f"{type(error).__name__}: {first_line(error)}"
        if words not in self.faults:
            self.faults.append(words)

    def propose(self, strategy: Strategy, known: Observations, count: int) -> list[Candidate]:
        """What a strategy proposes; with less to go by where it fails, at last nothing.  Raises OutOfTime."""
        while True:
            try:
                return strategy.propose(self.space, known, count, self.rng)
            except OutOfTime:
                raise
            except Exception as error:
                self.fault(error)
                if not self.space.degrade():
                    return []

    def observe(self, strategy: Strategy, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Tell a strategy what was measured; where it fails, the task goes on with less."""
        try:
            strategy.observe(self.space, measured, recalled=recalled)
        except Exception as error:
            self.fault(error)
            self.space.degrade()

    @property
    def best(self) -> tuple[float, Candidate] | None:
        """(seconds, candidate) of the fastest right schedule."""
        return self.known.best[0] if self.known.best else None
