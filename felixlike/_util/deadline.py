"""Tell everything that waits or computes for long when its run must end.

In: the moment, which the run moves when its search ends. Out: how long a step may take. A run without a limit of
seconds has no deadline, and its steps have their own limits only.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


class OutOfTime(Exception):
    """A step was stopped at the deadline. This says nothing about the candidate, so nothing is recorded."""


@dataclass(slots=True)
class Deadline:
    """moment: by time.monotonic.  least: seconds that a step has in any case, however late it begins."""

    moment: float = math.inf
    least: float = 0.0

    def move(self, seconds: float, *, least: float = 0.0) -> None:
        """Set the moment to so many seconds from now."""
        self.moment, self.least = time.monotonic() + seconds, least

    @property
    def passed(self) -> bool:
        """Whether it is too late to begin a step that can be left out."""
        return time.monotonic() >= self.moment

    def check(self) -> None:
        """Raise OutOfTime if the deadline has passed."""
        if self.passed:
            raise OutOfTime

    def limit(self, seconds: float) -> float:
        """Return the seconds that a step which begins now may take, if it has a limit of its own."""
        return min(seconds, max(self.moment - time.monotonic(), self.least))
