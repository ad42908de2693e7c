"""Tests that the matrices of fast convolution are exact in rational numbers for all tiles and taps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felixlike.frontend.rewrites.cook_toom import MOST, Matrix, fast_convolution

NUMBERS = st.lists(st.fractions(-10, 10, max_denominator=8), min_size=MOST, max_size=MOST)


def _times(matrix: Matrix, vector: Sequence[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize(("outputs", "taps"), [(m, r) for r in range(1, 6) for m in range(1, MOST + 2 - r)])
@given(data=NUMBERS, weights=NUMBERS)
def test_fast_convolution_equals_convolution(
    outputs: int, taps: int, data: list[Fraction], weights: list[Fraction]
) -> None:
    fast = fast_convolution(outputs, taps)
    d, g = data[: outputs + taps - 1], weights[:taps]
    products = [a * b for a, b in zip(_times(fast.taps, g), _times(fast.inputs, d), strict=True)]
    slow = [sum((d[i + k] * g[k] for k in range(taps)), Fraction(0)) for i in range(outputs)]
    assert _times(fast.outputs, products) == slow


def test_the_matrix_of_four_outputs_and_three_taps() -> None:
    """The matrix equals Bᵀ of Lavin and Gray, up to the signs of rows."""
    assert [[int(x) for x in row] for row in fast_convolution(4, 3).inputs] == [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
