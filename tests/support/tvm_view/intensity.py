"""TVM's arithmetic-intensity curve (147–156): operations per byte at ten fractions of a store's operations.

    intensity[k] = operations of the k innermost loops / bytes they touch

Entry i is the curve at (i + 1) / 10 of all operations. It is linear between loops, and constant below the innermost
loop. Copies and integer stores have zeros. Follows TVM's per_store_feature.cc (group 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SAMPLES = 10
_SLACK = 1e-4


def intensity(operations: float, extents: Sequence[int], touched: Sequence[float]) -> list[float]:
    """Return the ten entries.

    Args:
        operations: floating-point operations in one execution; NaN if unknown.
        extents: extents of the loops, outermost first.
        touched: bytes of all buffers touched by the loops from a level inwards, outermost first."""
    if not operations or not extents:
        return [0.0] * SAMPLES
    if math.isnan(operations) or any(map(math.isnan, touched)):
        return [math.nan] * SAMPLES
    work = [float(operations * math.prod(extents[level:])) for level in reversed(range(len(extents)))]
    curve = [done / size for done, size in zip(work, reversed(touched), strict=True)]
    entries, level = [], 0
    for sample in range(1, SAMPLES + 1):
        target = sample / SAMPLES * work[-1]
        while work[level] < target - _SLACK:
            level += 1
        entries.append(math.log2(_interpolated(work, curve, level, target) + 1))
    return entries


def _interpolated(work: Sequence[float], curve: Sequence[float], level: int, target: float) -> float:
    if level == 0:
        return curve[0]
    slope = (curve[level] - curve[level - 1]) / (work[level] - work[level - 1])
    return curve[level - 1] + slope * (target - work[level - 1])
