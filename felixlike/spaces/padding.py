"""Pad axes that no tile divides: operands of a contraction are padded with zeros, and only the write-back has a
predicate.

    for i in 197, j in 1000, k:           for i in 198, k: A_pad[i, k] = A[i, k] if i < 197 else 0
        C[i, j] += A[i, k] · B[k, j]  →   for k, j in 1008: B_pad[k, j] = B[k, j] if j < 1000 else 0
                                          for i in 198, j in 1008, k: C[i, j] += A_pad[i, k] · B_pad[k, j]

A predicate in the hot loop would prevent vectorization. Constants are padded once, when a model is compiled. Operands
in vectors are padded while they are copied into panels. Rows are not copied: `codegen/passes/remove_guards.py` shortens
the last tile instead. Rows may therefore be padded only to get better tiles: 6×4 vectors, of 512 rows, load less than
4×4. Only plain products are padded: TVM has no primitive that pads sliding windows.
"""

from __future__ import annotations

from collections.abc import Callable

from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.frontend.constants import PACKING
from felixlike.hardware import estimate
from felixlike.hardware.vectors import TILE, widths
from felixlike.spaces.contraction import Axis, Contraction

_MULTIPLES = (1, 12, 8, 10, 9, 7, 11)
"""Rows are padded to a multiple of one of these. The divisors of 12 suit any vector unit. The others are tried after
it: they are the other heights of tiles with two or more vectors in a row."""

_WIDTHS = (1, 2, 3, 4)
"""Padded vectors are padded to a multiple of one of these: 13 vectors, for example, only divide into tiles of one."""

_GAIN = 1.015
"""Ratio of `_time` up to which tiles that are not padded are preferred. Chosen by hand: no benchmark compares other
values."""


def is_plain(contraction: Contraction) -> bool:
    """Return whether every index of the operands and the output is a single axis, or 0."""
    indices = [index for operand in contraction.operands for index in operand.indices]
    axes = [axis.variable for axis in contraction.axes]
    zero = [type(index).__name__ == "IntImm" and int(index.value) == 0 for index in indices]
    plain = [is_zero or any(i.same_as(v) for v in axes) for i, is_zero in zip(indices, zero, strict=True)]
    return None not in contraction.written and all(plain)


def whole_vectors(extent: int, lanes: int) -> int:
    """Round an extent up to a multiple of a vector's lanes, or of a half or a quarter of them if the extent fits into
    that.
    """
    width = next((w for w in widths(lanes)[::-1] if extent <= w), lanes)
    return -(-extent // width) * width


def multiples(contraction: Contraction, vector: Axis, rows: Axis | None, lanes: int, registers: int) -> list[int]:
    """Return the multiple that each axis should be padded to, 1 for axes that need no padding."""
    result = [1] * len(contraction.axes)
    count = 1 if rows is None else rows.extent
    width = 1
    if vector.extent % lanes:
        width = _best(_WIDTHS, lambda width: _time(count, 1, -(-vector.extent // lanes), width, registers))
        result[vector.place] = lanes * width
    if rows is not None and rows.extent > TILE.rows:
        vectors = -(-vector.extent // lanes)
        result[rows.place] = _best(_MULTIPLES, lambda multiple: _time(count, multiple, vectors, width, registers))
    return result


def _best(multiples: tuple[int, ...], time: Callable[[int], float]) -> int:
    """Return the multiple that takes the least time, or 1, the first, unless another one is better by more than
    `_GAIN`.
    """
    best = min(multiples, key=time)
    return best if time(1) > _GAIN * time(best) else 1


def _time(extent: int, multiple: int, vectors: int, wider: int, registers: int) -> float:
    """Estimate the time of a reduction step, in products, in the best tiles of rows and vectors padded to their
    multiples.

    Rows that do not exist are not counted.
    """
    padded, across = (-(-size // by) * by for size, by in ((extent, multiple), (vectors, wider)))
    return min(
        (extent // rows * estimate.tile(rows, width) + estimate.tile(extent % rows, width)) * (across // width)
        for rows in range(1, TILE.rows + 1)
        for width in range(1, TILE.vectors + 1)
        if padded % rows == 0 and across % width == 0 and rows * width + width < registers
    )


def pack_when_compiled(schedule: Schedule, block: BlockRef, moved: int, lanes: int) -> None:
    """Turn a block that pads a constant into one that runs once, and make dimension `moved` the innermost, in
    vectors.
    """
    schedule.transform_layout(
        block, ("write", 0), lambda *i: [i[moved] // lanes, *i[:moved], *i[moved + 1 :], i[moved] % lanes]
    )
    schedule.annotate(block, PACKING, True)
