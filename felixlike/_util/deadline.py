"""Limit waiting and computing to the time that is left of a run.

Input: the deadline, which the run moves when its search ends. Output: the seconds that a step may take. A run
without a limit in seconds has no deadline, and its steps have only their own limits.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


class OutOfTime(Exception):
    """A step was stopped at the deadline. This says nothing about the candidate, so nothing is recorded."""


@dataclass(slots=True)
class Deadline:
    """Hold the time at which a run must end.

    Attributes:
        moment: The deadline, as a value of time.monotonic().
        least: Minimum seconds of a step, however late it begins.
    """

    moment: float = math.inf
    least: float = 0.0

    def move(self, seconds: float, *, least: float = 0.0) -> None:
        """Set the deadline to `seconds` from now."""
        self.moment, self.least = time.monotonic() + seconds, least

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed, so that optional steps should be skipped."""
        return time.monotonic() >= self.moment

    def check(self) -> None:
        """Raise OutOfTime if the deadline has passed."""
        if self.passed:
            raise OutOfTime

    def limit(self, seconds: float) -> float:
        """Return the seconds that a step with its own limit of `seconds` may take if it begins now."""
        return min(seconds, max(self.moment - time.monotonic(), self.least))
