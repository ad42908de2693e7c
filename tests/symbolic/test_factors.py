"""Divisors and ordered factorizations."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from felixlike.symbolic.expr.factors import divisors, draw_factorisations, factorisations, prime_factors


@pytest.mark.parametrize("number", [1, 2, 7, 12, 49, 360, 1009, 4096])
def test_divisors_and_primes(number: int) -> None:
    assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)
    assert math.prod(p**e for p, e in prime_factors(number)) == number


@pytest.mark.parametrize(
    ("extent", "parts", "largest"), [(12, 3, 64), (512, 4, 64), (53, 4, 64), (113, 2, 64), (1, 4, 64)]
)
def test_factorisations_are_complete(extent: int, parts: int, largest: int) -> None:
    table = factorisations(extent, parts, largest)
    assert table is not None
    assert (table.prod(axis=1) == extent).all()
    assert (table[:, -1] <= largest).all()
    assert len({tuple(r) for r in table.tolist()}) == len(table)
    everything = math.prod(math.comb(e + parts - 1, parts - 1) for _, e in prime_factors(extent))
    assert len(table) == everything or extent > largest


def test_draws_are_uniform() -> None:
    rows = draw_factorisations(12, 3, 4, 6000, np.random.default_rng(0))
    counts = Counter(map(tuple, rows.tolist()))
    table = factorisations(12, 3, 4)
    assert table is not None
    assert set(counts) == set(map(tuple, table.tolist()))
    assert min(counts.values()) > 0.7 * 6000 / len(table)


def test_many_factorisations_are_drawn_prime_by_prime() -> None:
    extent = 2**20 * 3**6 * 5**3
    assert factorisations(extent, 5, 64) is None
    rows = draw_factorisations(extent, 5, 64, 200, np.random.default_rng(0))
    assert rows.shape == (200, 5)
    assert (rows.prod(axis=1) == extent).all()
    assert (rows[:, -1] <= 64).all()
