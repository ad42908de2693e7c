"""Collect the training samples of strategies that fit one model per task.

Input: measurements. Output: a matrix of feature summaries per task, and each sample's speed relative to the best.
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
from felixlike.search.strategy import Configurable, Measured, by_sketch
from felixlike.symbolic import Points, Sketch


@dataclass(slots=True)
class Samples:
    """The samples of one task.

    Attributes:
        rows: Feature summaries, float32[width] each.
        seconds: Seconds per call; inf for failures.
    """

    rows: list[npt.NDArray[np.float32]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def speeds(self) -> npt.NDArray[np.float64]:
        """Return float64[n]: best / seconds, so 1 for the best and 0 for failures."""
        times = np.array(self.seconds)
        best = times.min(initial=np.inf)
        if not np.isfinite(best):
            return np.zeros(len(times))
        return np.asarray(np.where(np.isfinite(times), best / times, 0.0))


class Sampled(Configurable):
    """Base class of strategies that learn each task from its own measurements only."""

    def begin(self, model: CostModel) -> None:
        """Forget all samples; the run's model is not used."""
        self._samples: dict[str, Samples] = {}

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Add measurements to the task's samples."""
        samples = self.samples(space)
        for sketch, places in by_sketch([m.candidate for m in measured]):
            rows = rows_of(space, sketch, np.array([measured[i].candidate.point for i in places], dtype=np.int64))
            if rows is not None:
                samples.rows += list(rows)
                samples.seconds += [measured[i].seconds for i in places]

    def samples(self, space: Space) -> Samples:
        """Return the samples of a task."""
        by_task: dict[str, Samples] = self.__dict__.setdefault("_samples", {})
        return by_task.setdefault(space.task.key, Samples())


def rows_of(space: Space, sketch: Sketch, points: Points) -> Rows | None:
    """Return float32[n, width] for int64[n, variables]; None if the sketch has no formulas."""
    features = space.features(sketch, points)
    return None if features is None else summary(features)


def rows_of_candidates(space: Space, candidates: Sequence[Candidate]) -> Rows:
    """Return float32[n, width], with rows of NaN for sketches without formulas."""
    row_of: dict[int, npt.NDArray[np.float32]] = {}
    for sketch, places in by_sketch(candidates):
        rows = rows_of(space, sketch, np.array([candidates[i].point for i in places], dtype=np.int64))
        row_of |= dict(zip(places, rows, strict=True)) if rows is not None else {}
    width = len(next(iter(row_of.values()))) if row_of else 0
    nothing = np.full(width, np.nan, dtype=np.float32)
    return np.array([row_of.get(i, nothing) for i in range(len(candidates))], dtype=np.float32).reshape(-1, width)
