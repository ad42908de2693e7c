"""Estimate how long work takes on a CPU. Rules use the estimate to rank choices and to drop some.

Times are in products: the time of a multiply-add of vectors at full speed. It is half a cycle, since a core begins two
of them in a cycle. A core also begins two loads a cycle, and a sum waits four cycles for the previous one
(`IN_FLIGHT`). The estimate depends on no clock and no measurement, which differ from run to run: the same model always
has the same tasks. It chooses between forms of a program that are not searched. Tiles and whole kernels are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from felixlike.hardware.vectors import IN_FLIGHT, TILE


@dataclass(frozen=True, slots=True)
class Costs:
    """How long work takes. `late`, `unshared`, `transposed`, `one_by_one`, `unpacked` and `rounded` are chosen by hand.

    Attributes:
        late: Part of a load's time that products do not hide, since some loads come from beyond the L1 cache.
        unshared: Time of a product that loads its own vector, which no tile shares, in products.
        loaded: Time of loading a vector from a cache beyond L1, in products: 4 to 8 were measured on a core of Zen 5
            for recurrent weights in its L2 cache.
        copied: Time of copying a vector, in products: a load and a store.
        transposed: Time of an element of an output whose vectors lie across what is written, with shuffles of whole
            tiles, in products.
        one_by_one: Elements computed in the time of a vector where no rule vectorizes, but LLVM may.
        unpacked: Time of making a vector of bfloat16 elements float32, in products: two instructions.
        rounded: Time of copying an element of a vector that is rounded to bfloat16, in products of a vector's element:
            chosen for a load, a store and ten instructions in between. Whole vectors take fewer by now.
        balance: Floating-point operations in the time of a byte from or to main memory, for all cores together: 350 to
            500 GFLOPS and 20 to 60 GB/s on two cores.
    """

    late: float = 0.25
    unshared: float = 1.75
    loaded: float = 6.0
    copied: float = 2.0
    transposed: float = 0.25
    one_by_one: float = 4.0
    unpacked: float = 2.0
    rounded: float = 6.0
    balance: float = 16.0


COSTS = Costs()


def busy(rows: int, vectors: int) -> int:
    """Return the time of a reduction step in a register tile whose operands are near, in products.

    It is the largest of the products, the loads, and the wait for sums.
    """
    return max(rows * vectors, rows + vectors, IN_FLIGHT)


def tile(rows: int, vectors: int) -> float:
    """Return `busy` plus the time that loads add, 0 for no rows."""
    return busy(rows, vectors) + COSTS.late * (rows + vectors) if rows else 0.0


@cache
def hindrance(rows: int, vectors: int) -> float:
    """Return the ratio of a tile's busy time to the time of its products alone, at least 1."""
    return busy(rows, vectors) / (rows * vectors)


def even(iterations: int, cores: int) -> bool:
    """Return whether the cores are busy for at least four fifths: 5·iterations ≥ 4·cores·⌈iterations / cores⌉."""
    return 5 * iterations >= 4 * cores * -(-iterations // cores)


def moved(count: float) -> float:
    """Return the floating-point operations in the time that `count` bytes take between memory and cores."""
    return COSTS.balance * count


_MULTIPLES = (1, 12, 8, 10, 9, 7, 11)
"""Rows are padded to a multiple of one of these. The divisors of 12 suit any vector unit. The others are tried after
it: they are the other heights of tiles with two or more vectors in a row."""

_GAIN = 1.015
"""Ratio of `padded_tiles` up to which tiles that are not padded are preferred. Chosen by hand: no benchmark compares
other values."""


def padded_tiles(extent: int, multiple: int, vectors: int, wider: int, registers: int) -> float:
    """Return the time of a reduction step in the best tiles of rows and vectors that are padded to their multiples.

    Rows that do not exist are not counted.
    """
    padded, across = (-(-size // by) * by for size, by in ((extent, multiple), (vectors, wider)))
    return min(
        (extent // rows * tile(rows, width) + tile(extent % rows, width)) * (across // width)
        for rows in range(1, TILE.rows + 1)
        for width in range(1, TILE.vectors + 1)
        if padded % rows == 0 and across % width == 0 and rows * width + width < registers
    )


def best(multiples: tuple[int, ...], time: Callable[[int], float]) -> int:
    """Return the multiple that takes the least time, or 1, the first, unless another one is better by more than
    `_GAIN`.
    """
    fastest = min(multiples, key=time)
    return fastest if time(1) > _GAIN * time(fastest) else 1


def multiple_of_rows(extent: int, vectors: int, wider: int, registers: int, *, all_rows: bool = False) -> int:
    """Return the multiple that rows should be padded to, 1 for none. Vectors are padded to a multiple of `wider`.

    all_rows: whether tiles compute the rows that only pad, too.
    """

    def time(multiple: int) -> float:
        rows = -(-extent // multiple) * multiple if all_rows else extent
        return padded_tiles(rows, multiple, vectors, wider, registers)

    return best(_MULTIPLES, time)
