"""A batch of good candidates that are not all the same one.

In: scored candidates. Out: the best of them, apart from each other while there are such: in their factors, or in what a
model can tell of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from felixlike.search.candidate import Candidate
from felixlike.search.strategy import Key
from felixlike.symbolic import Kind

_APART = 0.5
"""Candidates of one batch differ by more than this, summed over log factors, while there are such."""


def diverse(candidates: Sequence[Candidate], count: int, taken: AbstractSet[Key]) -> list[Candidate]:
    """The best by score, first those that differ from each other, then any."""
    best: dict[Key, Candidate] = {}
    for candidate in candidates:
        if candidate.key not in taken and candidate.key not in best:
            best[candidate.key] = candidate
    ordered = sorted(best.values(), key=lambda c: -c.score)
    chosen: list[Candidate] = []
    positions: list[tuple[str, np.ndarray]] = []
    for candidate in ordered:
        if len(chosen) >= count:
            break
        here = _position(candidate)
        near = any(key == candidate.sketch.key and np.abs(here - p).sum() <= _APART for key, p in positions)
        if not near:
            chosen.append(candidate)
            positions.append((candidate.sketch.key, here))
    picked = {c.key for c in chosen}
    rest = [c for c in ordered if c.key not in picked]
    return [*chosen, *rest[: count - len(chosen)]]


_NOISE = 0.3
"""Of a measurement, as a share of the variance of scores."""


def spread_out(
    mean: npt.NDArray[np.float64], covariance: npt.NDArray[np.float64], count: int, optimism: float
) -> list[int]:
    """Places of a batch, chosen one after the other by mean + optimism · standard deviation, which falls for all that
    are like one that is chosen: measuring it will tell what they take (GP-BUCB, Desautels, Krause, Burdick 2014).

    mean: float64[n].  covariance: float64[n, n]."""
    left = covariance.copy()
    chosen: list[int] = []
    for _ in range(min(count, len(mean))):
        variance = np.clip(np.diagonal(left), 0.0, None)
        merit = mean + optimism * np.sqrt(variance)
        merit[chosen] = -np.inf
        best = int(merit.argmax())
        chosen.append(best)
        told = left[:, best]
        left = left - np.outer(told, told) / (variance[best] + _NOISE * covariance[best, best] + 1e-12)
    return chosen


def _position(candidate: Candidate) -> np.ndarray:
    """Logarithms of the tile factors; locations and unroll steps count as far apart."""
    kinds = [v.kind for v in candidate.sketch.variables]
    return np.array(
        [np.log(x) if kind is Kind.TILE else float(x) for kind, x in zip(kinds, candidate.point, strict=True)]
    )
