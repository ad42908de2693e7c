"""How long a run may go on: rounds, trials, seconds, whichever runs out first.

In: the user's limits. Out: `Budget`, which says how many candidates may still be measured. Without any limit a run
has four rounds a task. Limits are totals: what a store already holds counts, so that a run that is started again goes
on where it stopped, and returns at once where nothing is left.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from felixlike._util import option_checks
from felixlike.errors import InvalidBudget

DEFAULT_ROUNDS_PER_TASK = 4
TRIALS_PER_ROUND = 16
"""Candidates measured in one round of one task, as in Felix."""

_NO_LIMIT = "leave it out for no limit"


@dataclass(slots=True)
class Budget:
    """Limits and what has been spent.  rounds: of one task each.  trials: measured candidates.  seconds: since
    `started`, and of earlier runs; inf goes on as long as there is something left to try. None: no limit of that kind.
    found_…: how much of what is spent earlier runs had spent. Raises InvalidBudget for what is no number ≥ 0."""

    rounds: int | None = None
    trials: int | None = None
    seconds: float | None = None
    started: float = field(default_factory=time.monotonic)
    spent_rounds: int = 0
    spent_trials: int = 0
    found_rounds: int = 0
    found_trials: int = 0
    found_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.rounds is not None:
            self.rounds = _whole(self.rounds, "rounds")
        if self.trials is not None:
            self.trials = _whole(self.trials, "trials")
        if self.seconds is not None:
            self.seconds = option_checks.real(
                self.seconds, "seconds", finite=False, error=InvalidBudget, where="budget", otherwise=_NO_LIMIT
            )

    def with_default(self, tasks: int) -> Budget:
        """Itself, with rounds for every task if there was no limit at all."""
        if self.rounds is None and self.trials is None and self.seconds is None:
            self.rounds = DEFAULT_ROUNDS_PER_TASK * tasks
        return self

    def over_all(self, tasks: int) -> Budget:
        """Itself; fewer rounds than tasks become as many candidates as those have, so that no task goes without."""
        if self.rounds is not None and self.rounds < tasks:
            trials = TRIALS_PER_ROUND * self.rounds
            self.rounds, self.trials = None, trials if self.trials is None else min(trials, self.trials)
        return self

    def find(self, *, rounds: int = 0, trials: int = 0, seconds: float = 0.0) -> None:
        """Count what earlier runs have spent."""
        self.spent_rounds, self.found_rounds = self.spent_rounds + rounds, self.found_rounds + rounds
        self.spent_trials, self.found_trials = self.spent_trials + trials, self.found_trials + trials
        self.found_seconds += seconds

    @property
    def new_trials(self) -> int:
        """Candidates measured in this run."""
        return self.spent_trials - self.found_trials

    def elapsed(self) -> float:
        """Seconds since the start of this run."""
        return time.monotonic() - self.started

    def seconds_left(self) -> float:
        """Seconds until the limit; inf without one."""
        return math.inf if self.seconds is None else self.seconds - self.found_seconds - self.elapsed()

    def seconds_to(self, after: float) -> float:
        """Seconds until so many after the limit, or after the start of this run where earlier ones have reached it; inf
        without a limit."""
        if self.seconds is None:
            return math.inf
        return max(0.0, self.seconds - self.found_seconds) + after - self.elapsed()

    def trials_left(self) -> float:
        """Candidates until the limit; inf without one."""
        return math.inf if self.trials is None else max(0, self.trials - self.spent_trials)

    def next_batch(self) -> int:
        """How many candidates the next round may measure; 0 if the budget is spent."""
        if self.rounds is not None and self.spent_rounds >= self.rounds:
            return 0
        if self.seconds_left() <= 0:
            return 0
        return int(min(TRIALS_PER_ROUND, self.trials_left()))


def _whole(value: int, name: str) -> int:
    return option_checks.whole(value, name, error=InvalidBudget, where="budget", otherwise=_NO_LIMIT)
