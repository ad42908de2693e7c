"""Tests that the matrices of fast convolution are exact in rational numbers for all tiles and taps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from felixlike.frontend.rewrites.cook_toom import MOST, Matrix, fast_convolution


def _times(matrix: Matrix, vector: Sequence[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


def _unit(place: int, length: int) -> list[Fraction]:
    """Return a vector with a one at a place, and without one if it has no such place."""
    return [Fraction(number == place) for number in range(length)]


@pytest.mark.parametrize(("outputs", "taps"), [(m, r) for r in range(1, 6) for m in range(1, MOST + 2 - r)])
def test_fast_convolution_equals_convolution(outputs: int, taps: int) -> None:
    """Both are linear in the data and in the weights, so unit vectors decide for all numbers."""
    fast = fast_convolution(outputs, taps)
    for place in range(outputs + taps - 1):
        for tap in range(taps):
            data, weights = _unit(place, outputs + taps - 1), _unit(tap, taps)
            products = [a * b for a, b in zip(_times(fast.taps, weights), _times(fast.inputs, data), strict=True)]
            assert _times(fast.outputs, products) == _unit(place - tap, outputs)


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
