"""Hold the state of one task during a run, and degrade its search after internal errors.

Input: a task. Output: `TaskState`. An unexpected exception of a rule, a sketch or a formula is recorded, and the task
continues without that part. The search of other tasks is not affected.
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


@dataclass(frozen=True, slots=True)
class CachedChoice:
    """A cached choice.

    Attributes:
        candidate: The chosen candidate.
        error: Maximum relative error found by its check.
        sketches: Number of the task's sketches.
        sampled: Index of each non-symbolic sketch, and the reason.
    """

    candidate: Candidate
    error: float | None
    sketches: int
    sampled: dict[str, str]


@dataclass(slots=True)
class TaskState:
    """The state of one task during a run.

    Attributes:
        task: The task.
        rng: Random generator of the current round.
        known: All measurements, including those of earlier runs.
        progress: Best latencies and costs of the rounds, for the task scheduler.
        measured: The Measurement of each correct candidate, by its key.
        trials: Number of candidates measured in this run.
        failures: Number of incorrect candidates of this run, by status.
        recalled: Number of stored measurements of earlier runs.
        recalled_failures: Number of incorrect ones among them.
        unverifiable: Why outputs cannot be checked, so that no schedule can be used; empty if they can.
        faults: Descriptions of internal errors, after each of which the task continued with less.
        rounds: Number of full rounds, including earlier runs.
        interrupted: Keys measured by an earlier run in its last, unfinished round.
        space_name: Name of the design space.
        predicted: Unmeasured candidates with the best predictions, best first; None until computed.
        first_check: Result of checking the first of them; None until checked.
        kept: Cached choice of an earlier run.
        history: Measurements of this run.
        deadline: The run's deadline.
    """

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
    kept: CachedChoice | None = None
    history: History = field(default_factory=History)
    deadline: Deadline = field(default_factory=Deadline)
    _space: Space | None = None

    @property
    def space(self) -> Space:
        """Return the task's search space, created on first use."""
        if self._space is None:
            self._space = Space(self.task, self.space_name, on_error=self.fault, deadline=self.deadline)
        return self._space

    @property
    def sampled(self) -> dict[str, str]:
        """Return the index of each non-symbolic sketch, and the reason."""
        return {str(s.index): s.reason or "its formulas failed" for s in self.space.non_symbolic}

    def fault(self, error: Exception) -> None:
        """Record an internal error."""
        words = f"{type(error).__name__}: {first_line(error)}"
        if words not in self.faults:
            self.faults.append(words)

    def propose(self, strategy: Strategy, known: Observations, count: int) -> list[Candidate]:
        """Return the strategy's candidates; degrade the space whenever it fails, finally to none. Raise OutOfTime."""
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
        """Pass measurements to the strategy; degrade the space if it fails."""
        try:
            strategy.observe(self.space, measured, recalled=recalled)
        except Exception as error:
            self.fault(error)
            self.space.degrade()

    @property
    def best(self) -> tuple[float, Candidate] | None:
        """Return (seconds, candidate) of the fastest correct schedule; None without one."""
        return self.known.best[0] if self.known.best else None
