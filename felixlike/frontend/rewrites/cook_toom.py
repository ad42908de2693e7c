"""Compute the matrices of fast convolution in one dimension, by Cook and Toom.

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]        d: m + r − 1 inputs, g: r taps, y: m outputs, y[i] = Σ d[i + k] · g[k]

This takes m + r − 1 products for m outputs of r taps. Source: A. Lavin and S. Gray, Fast Algorithms for Convolutional
Neural Networks (2016), section 4. Both factors are polynomials, evaluated at m + r − 2 points and at infinity. The
products at these points determine the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod

Matrix = tuple[tuple[Fraction, ...], ...]

_POINTS = (0, 1, -1, 2, -2)
"""Evaluation points.

Opposite pairs share most of their sums, and small integers keep errors small (F(4, 3): about 4e-6).
"""

MOST = len(_POINTS) + 1
"""Upper limit of products per tile."""


@dataclass(frozen=True, slots=True)
class FastConvolution:
    """Hold the three matrices with exact fractions.

    Attributes:
        inputs: Bᵀ, one row per product.
        taps: G, one row per product.
        outputs: Aᵀ, one row per output.
    """

    inputs: Matrix
    taps: Matrix
    outputs: Matrix


@cache
def fast_convolution(outputs: int, taps: int) -> FastConvolution:
    """Return the matrices of F(m, r).  outputs: m.  taps: r, with m + r − 1 ≤ MOST."""
    count = outputs + taps - 1
    points = [Fraction(p) for p in _POINTS[: count - 1]]
    others = [[b for b in points if b != a] for a in points]
    scale = [prod((a - b for b in rest), start=Fraction(1)) for a, rest in zip(points, others, strict=True)]
    inputs = [_polynomial(rest, count) for rest in others] + [_polynomial(points, count)]
    weights = [[a**k / s for k in range(taps)] for a, s in zip(points, scale, strict=True)]
    weights.append([Fraction(k == taps - 1) for k in range(taps)])
    values = [[*(a**i for a in points), Fraction(i == outputs - 1)] for i in range(outputs)]
    return FastConvolution(_frozen(inputs), _frozen(weights), _frozen(values))


def _polynomial(roots: Sequence[Fraction], length: int) -> list[Fraction]:
    """Return the coefficients of Π (x − root) in ascending order, zero-padded to a length."""
    terms = [Fraction(1)]
    for root in roots:
        terms = [a - root * b for a, b in zip([Fraction(0), *terms], [*terms, Fraction(0)], strict=True)]
    return terms + [Fraction(0)] * (length - len(terms))


def _frozen(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    """Return rows as nested tuples."""
    return tuple(map(tuple, rows))
