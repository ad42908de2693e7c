"""Evaluate how well a cost model orders the measured candidates of an unseen workload.

    rank correlation   Spearman's, of scores and of 1 / latency
    top-k              latency of the best candidate ÷ of the best of the k predicted best (TenSet, Zheng et al. 2021)
    median             latency of the best candidate ÷ of the median one: what a random choice achieves

The input is scores and seconds, the output the numbers of each workload and their means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import numpy as np
import numpy.typing as npt

from felixlike.training.samples import Workload

Scores = npt.NDArray[np.float64]
Scorer = Callable[[Workload], Scores]
"""Returns the scores float64[n] of a workload's candidates, part by part; higher is faster."""

FEWEST = 5
"""Smallest number of timed candidates of an evaluated workload; with fewer, the top 5 are all candidates."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of scores; 1 is perfect.

    Attributes:
        rank: Spearman's rank correlation of scores and 1 / latency.
        top_1: Latency of the best candidate ÷ that of the predicted best.
        top_5: Latency of the best candidate ÷ that of the best of the 5 predicted best.
        median: Latency of the best candidate ÷ that of the median one.
    """

    rank: float
    top_1: float
    top_5: float
    median: float


def judged(scores: Scores, seconds: npt.NDArray[np.float64]) -> Quality | None:
    """Return the quality of one workload's scores; None if fewer than FEWEST candidates have a time."""
    timed = np.isfinite(seconds)
    scores, seconds = scores[timed], seconds[timed]
    if len(seconds) < FEWEST:
        return None
    best = float(seconds.min())
    order = np.argsort(-scores, kind="stable")
    return Quality(
        rank=rank_correlation(scores, -seconds),
        top_1=best / float(seconds[order[0]]),
        top_5=best / float(seconds[order[:5]].min()),
        median=best / float(np.median(seconds)),
    )


def rank_correlation(one: Scores, other: Scores) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; 0 if all values of one side are equal."""
    first, second = _ranks(one), _ranks(other)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Scores) -> Scores:
    """Return the ranks of values, with mean ranks for ties."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Scores = (ends - (counts - 1) / 2.0)[place]
    return ranks


def mean_quality(found: Sequence[Quality]) -> Quality:
    """Return the mean quality over workloads; nan if there are none."""
    if not found:
        return Quality(*[float("nan")] * len(fields(Quality)))
    return Quality(*(fmean(getattr(q, field.name) for q in found) for field in fields(Quality)))


def judge(scorer: Scorer, workloads: Sequence[Workload]) -> list[tuple[Workload, Quality]]:
    """Return the quality on each workload with enough timed candidates."""
    pairs = [(workload, judged(scorer(workload), workload.seconds)) for workload in workloads]
    return [(workload, quality) for workload, quality in pairs if quality is not None]
