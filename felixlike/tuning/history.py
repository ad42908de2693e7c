"""What a run has measured of one task, in its order, in a few numbers each; and what a run spends its time on.

In: measurements as they come; steps as they begin and end. Out: numbers for reports.
"""

from __future__ import annotations

import contextlib
import math
import time
from array import array
from collections.abc import Iterator

from felixlike.measure import Measurement, Status


class History:
    """A number for each measurement.  elapsed: seconds since the run began.  latency: seconds a call, inf unless right.
    score: what was predicted, nan where nothing was.  known: the best of earlier runs, inf without.  building, running:
    seconds that measuring took in all, of processes that work side by side."""

    def __init__(self) -> None:
        self.elapsed, self.latency, self.score = array("d"), array("d"), array("d")
        self.known = math.inf
        self.building = self.running = 0.0

    def add(self, elapsed: float, score: float, found: Measurement) -> None:
        """One more."""
        self.elapsed.append(elapsed)
        self.latency.append(found.seconds if found.status is Status.OK else math.inf)
        self.score.append(score)
        self.building += found.build_seconds
        self.running += found.run_seconds


class Spent:
    """Wall-clock seconds by what they were spent on.  Of a step within another, the inner one has them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    @contextlib.contextmanager
    def on(self, step: str) -> Iterator[None]:
        """All that happens inside."""
        started = time.monotonic()
        self._inner.append(0.0)
        try:
            yield
        finally:
            taken = time.monotonic() - started
            self.add(step, max(0.0, taken - self._inner.pop()))
            self._inner[-1] += taken

    def add(self, step: str, seconds: float) -> None:
        """Seconds that are over."""
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds
