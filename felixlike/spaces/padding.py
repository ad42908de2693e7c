"""Axes that no tile divides: the operands of a contraction are padded with zeros, and only the write-back has a guard.

    for i in 197, j in 1000, k:           for i in 198, k: A_pad[i, k] = A[i, k] if i < 197 else 0
        C[i, j] += A[i, k] · B[k, j]  →   for k, j in 1008: B_pad[k, j] = B[k, j] if j < 1000 else 0
                                          for i in 198, j in 1008, k: C[i, j] += A_pad[i, k] · B_pad[k, j]

A predicate in the hot loop would keep it from vectors. What is constant is padded once, when a model is compiled; the
rest is copied inside the kernel. Only for plain products: where a window slides, TVM has no primitive that pads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from felixlike.frontend.constants import PACKING
from felixlike.spaces.contraction import Axis, Contraction

_ROWS = (8, 6, 12, 10, 9, 7, 11, 5)
"""Rows of a register tile, the best first."""

_ENOUGH_ROWS = 6
"""An axis with a divisor from here to the most rows of a tile needs no padding."""

_WASTE = 1.02
"""A worse number of rows is taken if a better one would compute this much more."""


def is_plain(contraction: Contraction) -> bool:
    """Whether every index of every operand, and of the output, is one axis, or 0 where that is all there is."""
    indices = [index for operand in contraction.operands for index in operand.indices]
    axes = [axis.variable for axis in contraction.axes]
    zero = [type(index).__name__ == "IntImm" and int(index.value) == 0 for index in indices]
    plain = [is_zero or any(i.same_as(v) for v in axes) for i, is_zero in zip(indices, zero, strict=True)]
    return None not in contraction.written and all(plain)


def rounded(contraction: Contraction, lanes: int) -> Contraction:
    """The contraction as if every axis longer than a vector were a multiple of one."""
    axes = tuple(
        axis if axis.reduced or axis.extent < lanes else replace(axis, extent=-(-axis.extent // lanes) * lanes)
        for axis in contraction.axes
    )
    return replace(contraction, axes=axes)


def multiples(contraction: Contraction, vector: Axis, rows: Axis | None, lanes: int, most_rows: int) -> list[int]:
    """What each axis should be a multiple of; 1 for all that are fine as they are."""
    found = [1] * len(contraction.axes)
    if contraction.axes[vector.place].extent % lanes:
        found[vector.place] = lanes
    if rows is not None:
        found[rows.place] = _rows(contraction.axes[rows.place].extent, most_rows)
    return found


def _rows(extent: int, most: int) -> int:
    if extent <= most or any(extent % d == 0 for d in range(_ENOUGH_ROWS, most + 1)):
        return 1
    least = min(-(-extent // r) * r for r in _ROWS)
    return next(r for r in _ROWS if -(-extent // r) * r <= _WASTE * least)


def pack_when_compiled(schedule: Any, block: Any, moved: int, lanes: int) -> None:
    """Turn a block that pads a constant into one that is run once, and lets dimension `moved` end in vectors."""
    schedule.transform_layout(
        block, ("write", 0), lambda *i: [i[moved] // lanes, *i[:moved], *i[moved + 1 :], i[moved] % lanes]
    )
    schedule.annotate(block, PACKING, True)
