"""Synthesis index analysis: rank programs by the metrics of their uKernels (FTuner §V-B).

Input: combinations, metrics of uKernels. Output: the SIA score c₀·CMR + c₁·Pad + c₂·Occ, averaged over both uKernels,
and the ten best programs. The weights are 1, 1, 1, given by the user, or fitted to measurements (`fitting.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from felixlike._util.wording import shown
from felixlike.dynamic.ukernel import Floats, UKernels
from felixlike.errors import InvalidOption

TOP = 10
"""Programs of a size that are ranked for measuring, as in FTuner §V-B."""


@dataclass(frozen=True, slots=True)
class Sia:
    """The weights of CMR, Pad and Occ."""

    c0: float = 1.0
    c1: float = 1.0
    c2: float = 1.0

    def scores(self, cmr: Floats, pad: Floats, occ: Floats) -> Floats:
        """Evaluate eq. 1 for numbers or arrays."""
        return self.c0 * cmr + self.c1 * pad + self.c2 * occ


def read_sia(weights: Any) -> Sia:
    """Parse three weights of at least 0, not all of them 0. Raise InvalidOption."""
    if isinstance(weights, Sia):
        weights = (weights.c0, weights.c1, weights.c2)
    how = "give three numbers, as in sia=(1, 1, 1): the weights of CMR, padding and occupancy"
    if isinstance(weights, str | bytes) or not isinstance(weights, Sequence) or len(weights) != 3:
        raise InvalidOption(f"expected three weights, got {shown(weights)}", where="sia", remedy=how)
    for weight in weights:
        number = not isinstance(weight, bool) and isinstance(weight, int | float | np.number)
        if not number or not 0 <= weight < np.inf:
            raise InvalidOption(
                f"expected finite numbers of at least 0 as weights, got {shown(weight)}", where="sia", remedy=how
            )
    if not any(weights):
        raise InvalidOption("all three weights are zero", where="sia", remedy=how)
    return Sia(*map(float, weights))


def tile_scores(kernels: UKernels, sia: Sia) -> dict[tuple[int, int], Floats]:
    """Return the best score of each register tile (i, j) for each workload: float64[workloads], −∞ without any."""
    scores = np.where(kernels.fits, sia.scores(kernels.cmr, kernels.pad, kernels.occ), -np.inf)
    best: dict[tuple[int, int], Floats] = {}
    for (i, j), row in zip(kernels.reg.tolist(), scores, strict=True):
        best[i, j] = np.maximum(best[i, j], row) if (i, j) in best else row
    return best


def top(scores: Floats, count: int = TOP) -> list[int]:
    """Return the indices of the best scores, best first, without those of −∞."""
    order = np.argsort(-scores, kind="stable")[:count]
    return [int(place) for place in order if scores[place] > -np.inf]
