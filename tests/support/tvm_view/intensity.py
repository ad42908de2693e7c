"""TVM's arithmetic-intensity curve (147–156): operations a byte, at ten shares of a store's operations.

    intensity[k] = operations of the k innermost loops / bytes they touch

Entry i is that curve at (i + 1) / 10 of all operations, linear between loops, the innermost loop's own value before it.
Copies and integer stores have zeros. Follows TVM's per_store_feature.cc (group 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SAMPLES = 10
_SLACK = 1e-4


def intensity(operations: float, extents: Sequence[int], touched: Sequence[float]) -> list[float]:
    """Ten entries.

    operations: on floats, in one execution; NaN where unknown.  extents: of the loops, outermost first.  touched: bytes
    that all buffers touch while the loops from a level inwards run, likewise."""
    if not operations or not extents:
        return [0.0] * SAMPLES
    if math.isnan(operations) or any(map(math.isnan, touched)):
        return [math.nan] * SAMPLES
    work = [float(operations * math.prod(extents[level:])) for level in reversed(range(len(extents)))]
    curve = [done / size for done, size in zip(work, reversed(touched), strict=True)]
    entries, level = [], 0
    for sample in range(1, SAMPLES + 1):
        wanted = sample / SAMPLES * work[-1]
        while work[level] < wanted - _SLACK:
            level += 1
        entries.append(math.log2(_between(work, curve, level, wanted) + 1))
    return entries


def _between(work: Sequence[float], curve: Sequence[float], level: int, wanted: float) -> float:
    if level == 0:
        return curve[0]
    slope = (curve[level] - curve[level - 1]) / (work[level] - work[level - 1])
    return curve[level - 1] + slope * (wanted - work[level - 1])
