"""Axes that no tile divides: the operands of a contraction are padded with zeros, and only the write-back has a guard.

    for i in 197, j in 1000, k:           for i in 198, k: A_pad[i, k] = A[i, k] if i < 197 else 0
        C[i, j] += A[i, k] · B[k, j]  →   for k, j in 1008: B_pad[k, j] = B[k, j] if j < 1000 else 0
                                          for i in 198, j in 1008, k: C[i, j] += A_pad[i, k] · B_pad[k, j]

A predicate in the hot loop would keep it from vectors. What is constant is padded once, when a model is compiled; what
lies in vectors is padded on its way into panels; rows are not copied: `codegen/passes/remove_guards.py` gives the last
tile fewer. So rows may be padded only to have better tiles: 6×4 vectors, of 512 rows, load less than 4×4.
Only for plain products: where a window slides, TVM has no primitive that pads.
"""

from __future__ import annotations

from collections.abc import Callable

from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.frontend.constants import PACKING
from felixlike.hardware import estimate
from felixlike.hardware.vectors import MOST_ROWS, MOST_VECTORS, widths
from felixlike.spaces.contraction import Axis, Contraction

_MULTIPLES = (1, 12, 8, 10, 9, 7, 11)
"""What rows may be padded to multiples of: the divisors of 12 suit any vector unit; the others, tried after it, are the
other heights of tiles of two or more vectors a row."""

_WIDTHS = (1, 2, 3, 4)
"""What vectors that are padded anyway may be padded to multiples of: 13 of them lie in tiles of one."""

_GAIN = 1.015
"""How many times slower, by `_time`, tiles that are not padded may be.  Chosen by hand: no benchmark compares other
values."""


def is_plain(contraction: Contraction) -> bool:
    """Whether every index of every operand, and of the output, is one axis, or 0 where that is all there is."""
    indices = [index for operand in contraction.operands for index in operand.indices]
    axes = [axis.variable for axis in contraction.axes]
    zero = [type(index).__name__ == "IntImm" and int(index.value) == 0 for index in indices]
    plain = [is_zero or any(i.same_as(v) for v in axes) for i, is_zero in zip(indices, zero, strict=True)]
    return None not in contraction.written and all(plain)


def whole_vectors(extent: int, lanes: int) -> int:
    """The next multiple of a vector's lanes, or of half or a quarter of them where that is enough."""
    width = next((w for w in widths(lanes)[::-1] if extent <= w), lanes)
    return -(-extent // width) * width


def multiples(contraction: Contraction, vector: Axis, rows: Axis | None, lanes: int, registers: int) -> list[int]:
    """What each axis should be a multiple of; 1 for all that are fine as they are."""
    found = [1] * len(contraction.axes)
    count = 1 if rows is None else rows.extent
    width = 1
    if vector.extent % lanes:
        width = _best(_WIDTHS, lambda width: _time(count, 1, -(-vector.extent // lanes), width, registers))
        found[vector.place] = lanes * width
    if rows is not None and rows.extent > MOST_ROWS:
        vectors = -(-vector.extent // lanes)
        found[rows.place] = _best(_MULTIPLES, lambda multiple: _time(count, multiple, vectors, width, registers))
    return found


def _best(multiples: tuple[int, ...], time: Callable[[int], float]) -> int:
    """The multiple that takes the least time; 1, the first, unless another one is clearly better."""
    best = min(multiples, key=time)
    return best if time(1) > _GAIN * time(best) else 1


def _time(extent: int, multiple: int, vectors: int, wider: int, registers: int) -> float:
    """The time of a step of the reduction, in products, in the best tiles of rows padded to a multiple, without
    those that are not there, and of vectors padded to one."""
    padded, across = (-(-size // by) * by for size, by in ((extent, multiple), (vectors, wider)))
    return min(
        (extent // rows * estimate.tile(rows, width) + estimate.tile(extent % rows, width)) * (across // width)
        for rows in range(1, MOST_ROWS + 1)
        for width in range(1, MOST_VECTORS + 1)
        if padded % rows == 0 and across % width == 0 and rows * width + width < registers
    )


def pack_when_compiled(schedule: Schedule, block: BlockRef, moved: int, lanes: int) -> None:
    """Turn a block that pads a constant into one that is run once, and lets dimension `moved` end in vectors."""
    schedule.transform_layout(
        block, ("write", 0), lambda *i: [i[moved] // lanes, *i[:moved], *i[moved + 1 :], i[moved] % lanes]
    )
    schedule.annotate(block, PACKING, True)
