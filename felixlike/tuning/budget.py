"""Limit a run by rounds, trials and seconds; the first limit reached ends it.

Input: the user's limits. Output: `Budget`, which returns how many candidates may still be measured. Without any limit
an `Effort` decides, by default eight rounds per task. Limits are totals that include the records of a store: a
restarted run resumes where it stopped, and returns at once if the limits are used up.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from enum import StrEnum

from felixlike._util import option_checks
from felixlike.errors import InvalidBudget


class Effort(StrEnum):
    """Name how much a run without limits measures."""

    INSTANT = "instant"
    """Nothing: schedules are chosen by prediction and verified."""
    QUICK = "quick"
    """Two rounds per task."""
    NORMAL = "normal"
    """Up to eight rounds per task, as long as they gain something."""
    THOROUGH = "thorough"
    """Thirty-two rounds per task."""

    @property
    def rounds_per_task(self) -> int:
        """Return the number of rounds per task. Chosen by hand."""
        return _ROUNDS_PER_TASK[self]


_ROUNDS_PER_TASK = {Effort.INSTANT: 0, Effort.QUICK: 2, Effort.NORMAL: 8, Effort.THOROUGH: 32}

TRIALS_PER_ROUND = 8
"""Default maximum number of candidates measured in one round of one task.

Felix measures 16. On seven subgraphs in MetaSchedule's space with two seeds, the gradient came within 10, 5 and 1 % of
the best known in 5.1, 6.1 and 9.5 s with 8, in 6.6, 7.1 and 11.4 s with 16, in 5.5, 6.6 and 9.5 s with 4."""

LEAST_GAIN = 0.001
"""Share of a call's time, chosen by hand: users do not notice several times as much, and timings differ by more."""

_NO_LIMIT = "leave it out for no limit"


@dataclass(slots=True)
class Budget:
    """The limits of a run and the amounts spent.

    Args:
        rounds: Maximum number of rounds, each for one task; None for no limit.
        trials: Maximum number of measured candidates; None for no limit.
        seconds: Maximum time in seconds, including earlier runs; None for no limit. With inf the run ends when no
            candidates are left.
        least_gain: Share of a call's time that the latest two rounds of a task must have saved, so that it has another;
            0 to use up the limits.
        started: Start of the run, by `time.monotonic`.
        spent_rounds: Rounds spent, including earlier runs.
        spent_trials: Trials spent, including earlier runs.
        found_rounds: Rounds spent by earlier runs.
        found_trials: Trials spent by earlier runs.
        found_seconds: Seconds spent by earlier runs.

    Raises:
        InvalidBudget: A limit is negative or not a number.
    """

    rounds: int | None = None
    trials: int | None = None
    seconds: float | None = None
    least_gain: float = 0.0
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

    def with_default(self, tasks: int, effort: Effort = Effort.NORMAL) -> Budget:
        """Set the number of rounds of an effort if there is no limit; return self.

        With the normal effort the search also ends when another round is not worth it, see `least_gain`."""
        if self.rounds is None and self.trials is None and self.seconds is None:
            self.rounds = effort.rounds_per_task * tasks
            self.least_gain = LEAST_GAIN if effort is Effort.NORMAL else 0.0
        return self

    def over_all(self, tasks: int, trials_per_round: int | None = None) -> Budget:
        """Convert fewer rounds than tasks into as many trials, so that every task gets some; return self."""
        if self.rounds is not None and self.rounds < tasks:
            trials = (trials_per_round or TRIALS_PER_ROUND) * self.rounds
            self.rounds, self.trials = None, trials if self.trials is None else min(trials, self.trials)
        return self

    def find(self, *, rounds: int = 0, trials: int = 0, seconds: float = 0.0) -> None:
        """Add the amounts spent by earlier runs."""
        self.spent_rounds, self.found_rounds = self.spent_rounds + rounds, self.found_rounds + rounds
        self.spent_trials, self.found_trials = self.spent_trials + trials, self.found_trials + trials
        self.found_seconds += seconds

    @property
    def new_trials(self) -> int:
        """Return the number of candidates measured in this run."""
        return self.spent_trials - self.found_trials

    def elapsed(self) -> float:
        """Return the seconds since the start of this run."""
        return time.monotonic() - self.started

    def seconds_left(self) -> float:
        """Return the seconds until the limit; inf without a limit."""
        return math.inf if self.seconds is None else self.seconds - self.found_seconds - self.elapsed()

    def seconds_to(self, after: float) -> float:
        """Return the seconds until `after` seconds past the limit; inf without a limit.

        If earlier runs have used up the limit, `after` counts from the start of this run."""
        if self.seconds is None:
            return math.inf
        return max(0.0, self.seconds - self.found_seconds) + after - self.elapsed()

    def trials_left(self) -> float:
        """Return the number of trials until the limit; inf without a limit."""
        return math.inf if self.trials is None else max(0, self.trials - self.spent_trials)

    def next_batch(self, trials_per_round: int | None = None) -> int:
        """Return the maximum number of candidates of the next round; 0 if the budget is used up."""
        if self.rounds is not None and self.spent_rounds >= self.rounds:
            return 0
        if self.seconds_left() <= 0:
            return 0
        return int(min(trials_per_round or TRIALS_PER_ROUND, self.trials_left()))


def _whole(value: int, name: str) -> int:
    """Return a limit that must be a whole number of at least 0."""
    return option_checks.whole(value, name, error=InvalidBudget, where="budget", otherwise=_NO_LIMIT)
