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

from typing import Any

from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.frontend.constants import PACKING
from felixlike.hardware import estimate
from felixlike.hardware.vectors import TILE, widths
from felixlike.spaces.contraction import Axis, Contraction

_WIDTHS = (1, 2, 3, 4)
"""Padded vectors are padded to a multiple of one of these: 13 vectors, for example, only divide into tiles of one."""


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
        vectors = -(-vector.extent // lanes)
        width = estimate.best(_WIDTHS, lambda width: estimate.padded_tiles(count, 1, vectors, width, registers))
        result[vector.place] = lanes * width
    if rows is not None and rows.extent > TILE.rows:
        vectors = -(-vector.extent // lanes)
        result[rows.place] = estimate.multiple_of_rows(count, vectors, width, registers)
    return result


def pack_when_compiled(schedule: Schedule, block: BlockRef, moved: int, lanes: int, paired: int | None = None) -> None:
    """Turn a block that pads a constant into one that runs once, and make dimension `moved` the innermost, in vectors.

    If `paired` is a dimension, each element of a vector is a pair of neighbours along it.
    """

    def packed(*i: Any) -> list[Any]:
        rest = [e if d != paired else e // 2 for d, e in enumerate(i) if d != moved]
        return [i[moved] // lanes, *rest, i[moved] % lanes, *([] if paired is None else [i[paired] % 2])]

    schedule.transform_layout(block, ("write", 0), packed)
    schedule.annotate(block, PACKING, True)
