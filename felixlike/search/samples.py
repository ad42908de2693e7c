"""What strategies with a model of their own remember of each task: rows of numbers, and how fast they were.

In: measurements. Out: for each task a matrix of feature summaries and the speed of each, relative to the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from felixlike.costmodel import CostModel
from felixlike.costmodel.summary import Rows, summary
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.search.strategy import Measured, Strategy, by_sketch
from felixlike.symbolic import Points, Sketch


@dataclass(slots=True)
class Samples:
    """Of one task.  rows: float32[width] each.  seconds: inf for failures."""

    rows: list[npt.NDArray[np.float32]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def speeds(self) -> npt.NDArray[np.float64]:
        """float64[n]: best / seconds, so 1 for the best and 0 for failures."""
        times = np.array(self.seconds)
        best = times.min(initial=np.inf)
        if not np.isfinite(best):
            return np.zeros(len(times))
        return np.asarray(np.where(np.isfinite(times), best / times, 0.0))


class Sampled(Strategy):
    """A strategy that learns every task from its own measurements alone."""

    def begin(self, model: CostModel) -> None:
        """See `Strategy.begin`; the run's model is not asked."""
        self._samples: dict[str, Samples] = {}

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """See `Strategy.observe`."""
        samples = self.samples(space)
        for sketch, places in by_sketch([m.candidate for m in measured]):
            rows = rows_of(space, sketch, np.array([measured[i].candidate.point for i in places], dtype=np.int64))
            if rows is not None:
                samples.rows += list(rows)
                samples.seconds += [measured[i].seconds for i in places]

    def samples(self, space: Space) -> Samples:
        """What was measured of a task."""
        found: dict[str, Samples] = self.__dict__.setdefault("_samples", {})
        return found.setdefault(space.task.key, Samples())


def rows_of(space: Space, sketch: Sketch, points: Points) -> Rows | None:
    """float32[n, width] of int64[n, variables]; None where there are no formulas."""
    features = space.features(sketch, points)
    return None if features is None else summary(features)


def rows_of_candidates(space: Space, candidates: Sequence[Candidate]) -> Rows:
    """float32[n, width]; rows of NaN where there are no formulas."""
    found: dict[int, npt.NDArray[np.float32]] = {}
    for sketch, places in by_sketch(candidates):
        rows = rows_of(space, sketch, np.array([candidates[i].point for i in places], dtype=np.int64))
        found |= dict(zip(places, rows, strict=True)) if rows is not None else {}
    width = len(next(iter(found.values()))) if found else 0
    nothing = np.full(width, np.nan, dtype=np.float32)
    return np.array([found.get(i, nothing) for i in range(len(candidates))], dtype=np.float32).reshape(-1, width)
