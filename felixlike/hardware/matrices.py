"""Estimate products of matrices that a CPU's instruction multiplies (`instructions.TILES`).

A matrix of the first factor has up to 16 rows of up to 16 pairs. Rows divide one axis of a contraction, and pairs
another. The instruction takes the same time for smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable

ROWS = 16
"""Rows of a tile register, each of 64 bytes. The instruction's time does not depend on how many of them are used: with
loads, 1 to 16 rows of 16 pairs were measured to take 17 ns for a tile of 2 × 2 on a core of Granite Rapids."""

_LEAST = 2.0
"""Ratio of products per second to float32 from which matrices are used. Chosen by hand."""


def fitting(extent: int) -> int:
    """Return the largest divisor of an extent that fits into a tile register, as rows or as pairs."""
    return max(d for d in range(1, ROWS + 1) if extent % d == 0)


def filling(extent: int, cost: Callable[[int], float], step: int = 1) -> int:
    """Return the least costly of an extent's next multiples of `step` and of larger multiples that fit."""
    return min((-(-extent // by) * by for by in range(step, ROWS + 1, step)), key=cost)


def times(rows: int, words: int) -> float:
    """Return the ratio of products per second to float32: 16 if matrices are full. `words` are the pairs in a row."""
    return rows * words / ROWS


def pay(rows: int, words: int) -> bool:
    """Return whether matrices with these rows and pairs in a row are faster than vectors in float32."""
    return words > 1 and times(rows, words) >= _LEAST
