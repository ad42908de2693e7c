"""How long pieces of work take on a CPU, about: the one estimate by which rules order choices, and leave some out.

Times are in products: what a multiply-add of vectors takes where nothing hinders it, half a cycle, as a core begins two
of them in a cycle; it begins two loads as well, and a sum waits four cycles for the one before it (`IN_FLIGHT`).
Nothing here depends on a clock or on a measurement, which differ from run to run: the same model always has the same
tasks. It decides between forms of a program that are not searched; tiles, and whole kernels, are measured.
"""

from __future__ import annotations

from functools import cache

from felixlike.hardware.vectors import IN_FLIGHT

_LATE = 0.25
"""Of a load's time that products do not hide, since some loads come from farther away than the L1 cache.  Chosen by
hand."""

UNSHARED = 1.75
"""A product that loads a vector of its own, where no tile shares it.  Chosen by hand."""

COPIED = 2.0
"""A vector that is copied: a load and a store."""

TRANSPOSED = 0.25
"""An element of an output whose vectors lie across what is written, in shuffles of whole tiles.  Chosen by hand."""

ONE_BY_ONE = 4.0
"""Elements that are computed in the time of a vector where no rule makes vectors, but LLVM may.  Chosen by hand."""

_BALANCE = 16.0
"""Floating-point operations in the time of a byte from or to main memory, of all cores together: 350 to 500 GFLOPS and
20 to 60 GB/s on two cores."""


def busy(rows: int, vectors: int) -> int:
    """A step of the reduction in a register tile whose operands are near: products, loads where there are more of them,
    or waiting for sums."""
    return max(rows * vectors, rows + vectors, IN_FLIGHT)


def tile(rows: int, vectors: int) -> float:
    """The same with what loads add to that; nothing for no rows."""
    return busy(rows, vectors) + _LATE * (rows + vectors) if rows else 0.0


@cache
def hindrance(rows: int, vectors: int) -> float:
    """How many times longer a tile is busy than with its products alone, at least 1."""
    return busy(rows, vectors) / (rows * vectors)


def moved(count: float) -> float:
    """Floating-point operations in the time that so many bytes take between memory and cores."""
    return _BALANCE * count
