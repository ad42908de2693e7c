"""Compute divisors and ordered factorisations, and sample them fast, for perfect tiling."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

TABLE_LIMIT = 200_000
"""Maximum number of factorisations that are listed; above it, they are sampled prime by prime. Chosen by hand."""


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of number ≥ 1, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@cache
def factorisations(extent: int, parts: int, largest_last: int) -> npt.NDArray[np.int64] | None:
    """Return every ordered way to write extent as a product of `parts` factors, the last ≤ largest_last.

    Returns:
        int64[count, parts], or None if there are more than 200,000.
    """
    rows = [((), extent)]  # type: list[tuple[tuple[int, ...], int]]
    for _ in range(parts - 1):
        rows = [((*head, d), rest // d) for head, rest in rows for d in divisors(rest)]
        if len(rows) > TABLE_LIMIT:
            return None
    table = [(*head, rest) for head, rest in rows if rest <= largest_last]
    return np.array(table, dtype=np.int64).reshape(-1, parts)


def draw_factorisations(
    extent: int, parts: int, largest_last: int, count: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw factorisations, each equally likely among all that `factorisations` would list.

    Returns:
        int64[count, parts].
    """
    table = factorisations(extent, parts, largest_last)
    if table is not None:
        return table[rng.integers(len(table), size=count)]
    batches: list[npt.NDArray[np.int64]] = []
    missing = count
    while missing:
        rows = _draw_by_primes(extent, parts, 2 * missing, rng)
        rows = rows[rows[:, -1] <= largest_last][:missing]
        batches.append(rows)
        missing -= len(rows)
    return np.concatenate(batches)


def _draw_by_primes(extent: int, parts: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Spread each prime's exponent over the parts, uniformly among compositions (stars and bars)."""
    rows = np.ones((count, parts), dtype=np.int64)
    for prime, exponent in prime_factors(extent):
        slots = exponent + parts - 1
        bars = np.sort(rng.random((count, slots)).argsort(axis=1)[:, : parts - 1], axis=1)
        edges = np.concatenate([np.full((count, 1), -1), bars, np.full((count, 1), slots)], axis=1)
        rows *= prime ** (np.diff(edges, axis=1) - 1)
    return rows


@cache
def prime_factors(number: int) -> tuple[tuple[int, int], ...]:
    """Return (prime, exponent) pairs of number ≥ 1, primes ascending."""
    factors: list[tuple[int, int]] = []
    rest, prime = number, 2
    while prime * prime <= rest:
        exponent = 0
        while rest % prime == 0:
            rest //= prime
            exponent += 1
        if exponent:
            factors.append((prime, exponent))
        prime += 1
    if rest > 1:
        factors.append((rest, 1))
    return tuple(factors)
