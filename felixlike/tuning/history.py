"""Record the measurements of a task in order.

Inputs: measurements. Output: numbers for reports.
"""

from __future__ import annotations

import math
from array import array

from felixlike.measure import Measurement, Status


class History:
    """The measurements of one task in this run.

    Attributes:
        elapsed: Seconds since the start of the run, per measurement.
        latency: Seconds per call, per measurement; inf if it failed or its output was wrong.
        score: Predicted score, per measurement; nan without a prediction.
        first: Number of measurements of the run's first round of the task.
        known: Best latency of earlier runs in seconds; inf without one.
        building: Total seconds of builds, summed over parallel processes.
        running: Total seconds of runs, summed over parallel processes.
    """

    def __init__(self) -> None:
        self.elapsed, self.latency, self.score = array("d"), array("d"), array("d")
        self.known = math.inf
        self.first = 0
        self.building = self.running = 0.0

    def add(self, elapsed: float, score: float, found: Measurement) -> None:
        """Add a measurement."""
        self.elapsed.append(elapsed)
        self.latency.append(found.seconds if found.status is Status.OK else math.inf)
        self.score.append(score)
        self.building += found.build_seconds
        self.running += found.run_seconds

    def predicted(self) -> float:
        """Return the latency of the first round's correct candidate with the best prediction.

        nan without one, or if earlier runs have measured the task, from which the predictions have learned."""
        if math.isfinite(self.known):
            return math.nan
        first = zip(self.score[: self.first], self.latency[: self.first], strict=True)
        scored = [pair for pair in first if not math.isnan(pair[0]) and math.isfinite(pair[1])]
        return max(scored, key=lambda pair: pair[0], default=(math.nan, math.nan))[1]
