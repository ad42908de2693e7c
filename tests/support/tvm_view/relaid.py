"""Constants that are laid out anew for a schedule: shapes, and indices in the new layout.

    W[8·k + j]                              digits, largest first:  k, j
    for j: for k:                →          the order of the loops: W'[j, k]

In: an access in its old layout, the loops around it. Out: the shape that TVM gives the constant, and how to get from
old indices to new ones. TVM cuts the old position into digits, one for each loop that moves it, or several where a
fused loop does, and puts them into the order of the loops.
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
    """A part of a position.  step: what it counts in.  loop, inner: where it comes from: loop // inner % extent."""

    step: int
    extent: int
    loop: int
    inner: int


class Relaid:
    """The constant of an access in its new layout.

    path: the loops of the program around the access; nest: of `loops`, what they are."""

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
            ways = [step * loops.value(stride) for step, stride in zip(self._steps, strides, strict=True)]
            if extent > 1 and any(ways):
                name, inner = nest.places[loop.variable]
                digits.append(_Digit(sum(ways), extent, order.index(name), inner))
        self._digits = _merged(sorted(digits, key=lambda digit: -digit.step))
        self._order = sorted(range(len(self._digits)), key=lambda i: (self._digits[i].loop, -self._digits[i].inner))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of its dimensions."""
        return tuple(self._digits[place].extent for place in self._order)

    def indices(self, old: list[Any]) -> list[Any]:
        """New indices for old ones, expressions of TVM's."""
        dtype, analyzer = self._loops.dtype, self._loops.analyzer
        variables = [_tvm.tirx.Var(f"v{d}", dtype) for d in range(len(self._old))]
        for variable, extent in zip(variables, self._old, strict=True):
            analyzer.bind(variable, _tvm.ir.Range(0, extent))
        rest: Any = _tvm.tirx.const(0, dtype)
        for variable, step in zip(variables, self._steps, strict=True):
            rest = rest + variable * step
        found: list[Any] = []
        for digit in reversed(self._digits):
            rest = analyzer.simplify(rest)
            found.append(analyzer.simplify(_tvm.tirx.floormod(rest, digit.extent)))
            rest = _tvm.tirx.floordiv(rest, digit.extent)
        found.reverse()
        standing = dict(zip(variables, old, strict=True))
        return [analyzer.simplify(_tvm.substituted(found[place], standing)) for place in self._order]


def _merged(digits: list[_Digit]) -> list[_Digit]:
    """The digits, largest first, those that follow each other in one loop as one."""
    found: list[_Digit] = []
    for digit in digits:
        last = found[-1] if found else None
        if last is not None and last.loop == digit.loop and last.inner == digit.inner * digit.extent:
            found[-1] = _Digit(digit.step, last.extent * digit.extent, digit.loop, digit.inner)
        else:
            found.append(digit)
    return found
