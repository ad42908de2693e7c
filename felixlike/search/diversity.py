"""Select a batch of good and diverse candidates.

Input: scored candidates. Output: the best of them that differ in their tile factors (`diverse`) or in the model's
covariance (`spread_out`).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from felixlike.search.candidate import Candidate
from felixlike.search.strategy import Key
from felixlike.symbolic import Kind

_MIN_DISTANCE = 0.5
"""Minimum distance of the candidates of a batch: sum of absolute differences of log factors. Chosen by hand."""


def diverse(candidates: Sequence[Candidate], count: int, taken: AbstractSet[Key]) -> list[Candidate]:
    """Return the `count` best candidates by score, diverse ones first.

    Args:
        candidates: Scored candidates.
        count: Size of the batch.
        taken: Keys of candidates to skip.
    """
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
        near = any(key == candidate.sketch.key and np.abs(here - p).sum() <= _MIN_DISTANCE for key, p in positions)
        if not near:
            chosen.append(candidate)
            positions.append((candidate.sketch.key, here))
    picked = {c.key for c in chosen}
    rest = [c for c in ordered if c.key not in picked]
    return [*chosen, *rest[: count - len(chosen)]]


_NOISE = 0.3
"""Variance of a measurement's noise relative to the prior variance of its score. Chosen by hand."""


def spread_out(
    mean: npt.NDArray[np.float64], covariance: npt.NDArray[np.float64], count: int, optimism: float
) -> list[int]:
    """Return the indices of a batch, selected one by one (GP-BUCB, Desautels, Krause, Burdick 2014).

    Each selection maximizes mean + optimism · standard deviation. It lowers the standard deviation of all candidates
    correlated with it, since measuring it will inform about them.

    Args:
        mean: float64[n], predicted scores.
        covariance: float64[n, n], covariance of the scores.
        count: Size of the batch.
        optimism: Weight of the standard deviation.
    """
    posterior = covariance.copy()
    chosen: list[int] = []
    for _ in range(min(count, len(mean))):
        variance = np.clip(np.diagonal(posterior), 0.0, None)
        merit = mean + optimism * np.sqrt(variance)
        merit[chosen] = -np.inf
        best = int(merit.argmax())
        chosen.append(best)
        column = posterior[:, best]
        posterior = posterior - np.outer(column, column) / (variance[best] + _NOISE * covariance[best, best] + 1e-12)
    return chosen


def _position(candidate: Candidate) -> np.ndarray:
    """Return the logarithms of the tile factors and the plain values of all other variables."""
    kinds = [v.kind for v in candidate.sketch.variables]
    return np.array(
        [np.log(x) if kind is Kind.TILE else float(x) for kind, x in zip(kinds, candidate.point, strict=True)]
    )
