"""From what a run measured, in order, to curves of the best so far, and to how soon that was good enough.

In: seconds elapsed and the latency of each candidate. Out: best latencies over candidates and over seconds, and what it
took to come within a share of the best known. Knows nothing of stores: benchmarks give it series of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

QUALITIES = (0.90, 0.95, 0.99)
"""Shares of the best known performance: best known latency ÷ latency."""

_ROUNDING = 1e-9
"""What a latency may miss a quality by: the best itself has all of it, whatever a division gives."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reached:
    """candidates: measured until then, that one included.  seconds: elapsed."""

    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """A new best.  candidates, seconds: as Reached.  latency: seconds a call."""

    candidates: int
    seconds: float
    latency: float


class Series:
    """One run's measurements of one task, in their order.

    elapsed: seconds since the run began, never falling.  latency: seconds a call; inf for candidates that failed; nan,
    which is only checked and never timed, counts as a failure."""

    def __init__(self, elapsed: Iterable[float], latency: Iterable[float]) -> None:
        self.elapsed: Numbers = np.fromiter(elapsed, dtype=np.float64)
        given = np.fromiter(latency, dtype=np.float64)
        if len(self.elapsed) != len(given):
            raise ValueError(f"{len(self.elapsed)} times for {len(given)} latencies")
        self.latency: Numbers = np.where(np.isnan(given), np.inf, given)
        self.best_so_far: Numbers = np.minimum.accumulate(self.latency)

    def __len__(self) -> int:
        return len(self.latency)

    @property
    def best(self) -> float:
        """The best of all, inf where none was right."""
        return float(self.best_so_far[-1]) if len(self) else math.inf

    @property
    def seconds(self) -> float:
        """Elapsed at the end."""
        return float(self.elapsed[-1]) if len(self) else 0.0

    @property
    def right(self) -> int:
        """How many candidates have a time."""
        return int(np.isfinite(self.latency).sum())

    def after(self, candidates: int) -> float:
        """The best of the first so many, or of all where there are fewer; inf of none."""
        last = min(candidates, len(self))
        return float(self.best_so_far[last - 1]) if last > 0 else math.inf

    def after_seconds(self, seconds: float) -> float:
        """The best of what was measured by then; inf of nothing."""
        return self.after(int(np.searchsorted(self.elapsed, seconds, side="right")))

    def reached(self, latency: float) -> Reached | None:
        """When the best was no slower than this; None if it never was."""
        found = np.flatnonzero(self.best_so_far <= latency)
        if not len(found):
            return None
        return Reached(int(found[0]) + 1, float(self.elapsed[found[0]]))

    def steps(self) -> tuple[Step, ...]:
        """The curve: every candidate that was faster than all before it."""
        before = np.concatenate([[np.inf], self.best_so_far[:-1]])
        return tuple(
            Step(int(i) + 1, float(self.elapsed[i]), float(self.latency[i]))
            for i in np.flatnonzero(self.latency < before)
        )


def best_known(every: Iterable[Series]) -> float:
    """The best latency of several series; inf where there is none."""
    return min((series.best for series in every), default=math.inf)


def times_to(
    series: Series, known: float, qualities: Sequence[float] = QUALITIES
) -> tuple[tuple[float, Reached | None], ...]:
    """For each share of the performance of the best known latency, what it took to reach it; None: never did."""
    return tuple((quality, series.reached(known / quality * (1 + _ROUNDING))) for quality in qualities)


def quality(latency: float, known: float) -> float:
    """The share of the best known performance that a latency has: 1 for the best itself, 0 for failures."""
    return known / latency if math.isfinite(latency) and latency > 0 else 0.0
