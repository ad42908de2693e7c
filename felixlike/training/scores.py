"""How good a model is at its job alone: ordering the measured candidates of a workload it has not seen.

    rank correlation   Spearman's, of scores and of 1 / latency
    top-k              latency of the best candidate ÷ of the best of the k predicted best (TenSet, Zheng et al. 2021)
    median             latency of the best candidate ÷ of the median one: what choosing blindly brings

In: scores and seconds. Out: numbers a workload, their means.
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
"""Scores float64[n] of a workload's candidates, part after part; higher is faster."""

FEWEST = 5
"""Candidates with a time below which a workload is not judged: its best five would be all."""


@dataclass(frozen=True, slots=True)
class Quality:
    """See the module's docstring; 1 is perfect."""

    rank: float
    top_1: float
    top_5: float
    median: float


def judged(scores: Scores, seconds: npt.NDArray[np.float64]) -> Quality | None:
    """The quality of one workload's scores; None where too few candidates have a time."""
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
    """Spearman's, ties sharing their mean rank; 0 where one side is all ties."""
    first, second = _ranks(one), _ranks(other)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Scores) -> Scores:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Scores = (ends - (counts - 1) / 2.0)[place]
    return ranks


def mean_quality(found: Sequence[Quality]) -> Quality:
    """The means over workloads; nan where there are none."""
    if not found:
        return Quality(*[float("nan")] * len(fields(Quality)))
    return Quality(*(fmean(getattr(q, field.name) for q in found) for field in fields(Quality)))


def judge(scorer: Scorer, workloads: Sequence[Workload]) -> list[tuple[Workload, Quality]]:
    """The quality on each workload that can be judged."""
    found = [(workload, judged(scorer(workload), workload.seconds)) for workload in workloads]
    return [(workload, quality) for workload, quality in found if quality is not None]
