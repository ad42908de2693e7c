"""Compute curves of the best latency so far, and when it reached a share of the best known performance.

Inputs: seconds elapsed and the latency of each candidate, in order of measurement. Outputs: best latencies over
candidates and over seconds, and what was needed to come within a share of the best known; the latency of a network of
several tasks; the median of several runs with its confidence interval. The module does not depend on stores, so
benchmarks use it with their own series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

QUALITIES = (0.90, 0.95, 0.99)
"""Default shares of the best known performance: best known latency ÷ latency."""

_ROUNDING = 1e-9
"""Relative tolerance for rounding, so that the best latency itself reaches a share of 1."""

Numbers = npt.NDArray[np.float64]
"""float64 array."""


@dataclass(frozen=True, slots=True)
class Reached:
    """When a series reached a latency.

    Attributes:
        candidates: Candidates measured until then, including the one that reached it.
        seconds: Seconds elapsed.
    """

    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """A new best of a series.

    Attributes:
        candidates: Candidates measured until then, including this one.
        seconds: Seconds elapsed.
        latency: Seconds per call.
    """

    candidates: int
    seconds: float
    latency: float


class Series:
    """The measurements of one task in one run, in order.

    Args:
        elapsed: Seconds since the start of the run, non-decreasing.
        latency: Seconds per call of each candidate. inf marks a failure. nan (checked but not timed) counts as a
            failure.

    Attributes:
        elapsed: float64[n], as given.
        latency: float64[n], with inf for failures.
        best_so_far: float64[n], running minimum of `latency`.

    Raises:
        ValueError: The lengths differ.

    Example:
        >>> Series([1.0, 2.0, 3.0], [5e-6, 4e-6, 6e-6]).best
        4e-06
    """

    def __init__(self, elapsed: Iterable[float], latency: Iterable[float]) -> None:
        self.elapsed: Numbers = np.fromiter(elapsed, dtype=np.float64)
        latencies = np.fromiter(latency, dtype=np.float64)
        if len(self.elapsed) != len(latencies):
            raise ValueError(
                f"expected one time per latency, got {len(self.elapsed)} times and {len(latencies)} latencies"
            )
        self.latency: Numbers = np.where(np.isnan(latencies), np.inf, latencies)
        self.best_so_far: Numbers = np.minimum.accumulate(self.latency)

    def __len__(self) -> int:
        return len(self.latency)

    @property
    def best(self) -> float:
        """Return the lowest latency in seconds; inf without a valid candidate."""
        return float(self.best_so_far[-1]) if len(self) else math.inf

    @property
    def seconds(self) -> float:
        """Return the seconds elapsed at the end; 0 for an empty series."""
        return float(self.elapsed[-1]) if len(self) else 0.0

    @property
    def right(self) -> int:
        """Return the number of valid candidates, those with a finite latency."""
        return int(np.isfinite(self.latency).sum())

    def after(self, candidates: int) -> float:
        """Return the lowest latency of the first `candidates` candidates, or of all of them; inf for none."""
        last = min(candidates, len(self))
        return float(self.best_so_far[last - 1]) if last > 0 else math.inf

    def after_seconds(self, seconds: float) -> float:
        """Return the lowest latency measured within `seconds`; inf if nothing was measured."""
        return self.after(int(np.searchsorted(self.elapsed, seconds, side="right")))

    def reached(self, latency: float) -> Reached | None:
        """Return when the best latency first was at most `latency` (seconds per call); None if never."""
        places = np.flatnonzero(self.best_so_far <= latency)
        if not len(places):
            return None
        return Reached(int(places[0]) + 1, float(self.elapsed[places[0]]))

    def steps(self) -> tuple[Step, ...]:
        """Return the curve: every candidate that was faster than all before it."""
        before = np.concatenate([[np.inf], self.best_so_far[:-1]])
        return tuple(
            Step(int(i) + 1, float(self.elapsed[i]), float(self.latency[i]))
            for i in np.flatnonzero(self.latency < before)
        )


def combined(
    elapsed: Sequence[float], task: Sequence[int], latency: Sequence[float], weights: Sequence[float]
) -> Series:
    """Return the latency of a network over the candidates of its tasks: Σ weight × best latency of the task so far.

    Args:
        elapsed: Seconds since the start of the run, for each candidate.
        task: Index of each candidate's task.
        latency: Seconds per call of each candidate; inf marks a failure.
        weights: Calls of each task in the network. Tasks with weight 0 are left out.

    Returns:
        The series, whose latencies are inf until each task has a valid candidate.

    Example:
        >>> combined([1.0, 2.0, 3.0], [0, 1, 0], [5e-6, 4e-6, 3e-6], [2, 1]).latency.tolist()
        [inf, 1.4e-05, 1e-05]
    """
    best = np.full(len(weights), np.inf)
    counted = np.array(weights, dtype=np.float64) > 0
    totals = []
    for index, seconds in zip(task, latency, strict=True):
        best[index] = min(best[index], seconds)  # nan never becomes the best
        totals.append(float(np.dot(best[counted], np.array(weights, dtype=np.float64)[counted])))
    return Series(elapsed, totals)


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of several runs, with a confidence interval.

    Attributes:
        median: The median.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    median: float
    low: float
    high: float


def ranks_of_interval(count: int, confidence: float = 0.95) -> tuple[int, int]:
    """Return the ranks, from 0, of the sorted values between which the median lies with at least this probability.

    The interval assumes nothing about the distribution. Fewer than 6 values have no interval of 95 %: the ranks are
    those of the smallest and of the largest one, between which the median lies with probability 1 − 2^(1−n).
    """
    tail, chosen = 0.0, 0
    for rank in range(count // 2):
        tail += math.comb(count, rank) / 2.0**count
        if 2.0 * tail > 1.0 - confidence:
            break
        chosen = rank
    return chosen, count - 1 - chosen


def interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    """Return the median of at least one value, and its confidence interval; inf stands for runs that did not arrive."""
    ordered = sorted(values)
    low, high = ranks_of_interval(len(ordered), confidence)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else _between(ordered[middle - 1], ordered[middle])
    return Interval(median, ordered[low], ordered[high])


def band(
    every: Sequence[Series], at: Sequence[float], *, seconds: bool = True, confidence: float = 0.95
) -> list[Interval]:
    """Return the median best latency of several runs, with its confidence interval, at points of the horizontal axis.

    Args:
        every: Series of runs with different seeds.
        at: Seconds, or numbers of candidates.
        seconds: Whether `at` are seconds.
        confidence: Probability with which an interval contains the median.

    Returns:
        An interval for each point, of latencies in seconds; inf while too few runs have a valid candidate.
    """
    return [interval((s.after_seconds(x) if seconds else s.after(int(x)) for s in every), confidence) for x in at]


def _between(low: float, high: float) -> float:
    """Return the mean of two numbers, which may both be inf."""
    return low if low == high else (low + high) / 2.0


def best_known(every: Iterable[Series]) -> float:
    """Return the lowest latency of several series in seconds; inf if there is none."""
    return min((series.best for series in every), default=math.inf)


def times_to(
    series: Series, known: float, qualities: Sequence[float] = QUALITIES
) -> tuple[tuple[float, Reached | None], ...]:
    """Return what a series needed to reach shares of the best known performance.

    Args:
        series: Measurements of one task.
        known: Best known latency, in seconds.
        qualities: Shares of the best known performance, in (0, 1].

    Returns:
        A pair (share, `Reached`) for each share; None in place of `Reached` if the series never reached it.
    """
    return tuple((quality, series.reached(known / quality * (1 + _ROUNDING))) for quality in qualities)


def quality(latency: float, known: float) -> float:
    """Return the share of the best known performance that a latency has: 1 for the best itself, 0 for failures."""
    return known / latency if math.isfinite(latency) and latency > 0 else 0.0
