"""Constants that are packed for a schedule: their shapes, and indices in the new layout.

    W[8·k + j]                              digits, largest first:  k, j
    for j: for k:                →          the order of the loops: W'[j, k]

Input: an access in the old layout and the loops around it. Output: the shape that TVM gives the constant, and new
indices for old ones. TVM splits the old position into digits, one for each loop that moves it, or several for a fused
loop, and sorts them by the order of the loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.symbolic.program import Access, Loop
from support.tvm_view.loops import Loops, Nest


@dataclass(frozen=True, slots=True)
class _Digit:
    """A part of a position, `loop // inner % extent` in units of `step` elements.

    Attributes:
        step: the unit in elements.
        loop: number of the loop."""

    step: int
    extent: int
    loop: int
    inner: int


class Relaid:
    """The constant of an access in its new layout.

    Args:
        access: the access.
        path: the program's loops around the access.
        nest: the lowered loops around the access.
        loops: all loops of the program."""

    def __init__(self, access: Access, path: tuple[Loop, ...], nest: Nest, loops: Loops) -> None:
        assert access.buffer.origin is not None
        self._old = [loops.value(extent) for extent in access.buffer.origin.shape]
        self._steps = [math.prod(self._old[d + 1 :]) for d in range(len(self._old))]
        self._loops = loops
        order = [loop.name for loop in nest.loops]
        digits: list[_Digit] = []
        for loop in path:
            extent = loops.value(loop.extent)
            strides = [index.stride(loop.variable) for index in access.written]
            distances = [step * loops.value(stride) for step, stride in zip(self._steps, strides, strict=True)]
            if extent > 1 and any(distances):
                name, inner = nest.places[loop.variable]
                digits.append(_Digit(sum(distances), extent, order.index(name), inner))
        self._digits = _merged(sorted(digits, key=lambda digit: -digit.step))
        self._order = sorted(range(len(self._digits)), key=lambda i: (self._digits[i].loop, -self._digits[i].inner))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        return tuple(self._digits[place].extent for place in self._order)

    def indices(self, old: list[Any]) -> list[Any]:
        """Return new indices for old ones, as TVM expressions."""
        dtype, analyzer = self._loops.dtype, self._loops.analyzer
        variables = [_tvm.tirx.Var(f"v{d}", dtype) for d in range(len(self._old))]
        for variable, extent in zip(variables, self._old, strict=True):
            analyzer.bind(variable, _tvm.ir.Range(0, extent))
        quotient: Any = _tvm.tirx.const(0, dtype)
        for variable, step in zip(variables, self._steps, strict=True):
            quotient = quotient + variable * step
        digit_indices: list[Any] = []
        for digit in reversed(self._digits):
            quotient = analyzer.simplify(quotient)
            digit_indices.append(analyzer.simplify(_tvm.tirx.floormod(quotient, digit.extent)))
            quotient = _tvm.tirx.floordiv(quotient, digit.extent)
        digit_indices.reverse()
        index_values = dict(zip(variables, old, strict=True))
        return [analyzer.simplify(_tvm.substituted(digit_indices[place], index_values)) for place in self._order]


def _merged(digits: list[_Digit]) -> list[_Digit]:
    """Merge digits that are adjacent in one loop; digits are ordered with the largest first."""
    merged: list[_Digit] = []
    for digit in digits:
        last = merged[-1] if merged else None
        if last is not None and last.loop == digit.loop and last.inner == digit.inner * digit.extent:
            merged[-1] = _Digit(digit.step, last.extent * digit.extent, digit.loop, digit.inner)
        else:
            merged.append(digit)
    return merged
