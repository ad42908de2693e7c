"""Choose how a GPU's threads use the axes of a contraction: which are in vectors, transposed or padded.

Input: a `Contraction`. Output: the main axis of each operand, and the vectors along axes and in copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.spaces.contraction import Axis, Contraction, Operand, slides
from felixlike.spaces.gpu.thread_bounds import WARP

LANES = 4
"""float32 elements of the longest vector that is loaded at once."""
_VECTOR = 128
"""Bits that a thread loads or stores at once."""
_MULTIPLES = ((1, 1.5), (2, 1.25), (4, 1.1), (8, 1.04), (16, 1.01), (32, 1.0))
"""(multiple, how many times slower its tiles are) for padding an axis of a plain product. Chosen by hand: no benchmark
compares others."""


@dataclass(frozen=True, slots=True)
class ThreadAxes:
    """How a thread's tile uses the axes of a contraction.

    Attributes:
        contraction: The contraction.
        main: For each operand, the axis along which a thread has neighbouring outputs, or None. Only this operand has
            it.
    """

    contraction: Contraction
    main: tuple[Axis | None, Axis | None]

    @property
    def lane_level(self) -> str:
        """Return the loop level of the lanes along a reduction axis: "inner", or "step" of an instruction."""
        return "inner"

    def window_level(self, axis: Axis) -> str:
        """Return the loop level of a window axis: "inner" if a block's step covers it, else "outer"."""
        return "inner"

    @property
    def least_steps(self) -> int:
        """Return the lower limit on reduction steps in a step of a block."""
        return LANES

    @property
    def least_bytes(self) -> int:
        """Return the lower limit on a block's shared memory in bytes, 0 if it is small."""
        return 0

    @property
    def least_threads(self) -> int:
        """Return the lower limit on threads of a block, if the output has enough elements for them."""
        return WARP

    def lanes(self, axis: Axis) -> int:
        """Return the neighbours along an axis in every tile: elements of a vector, or 1 for other axes."""
        in_vectors = axis in self.main or (self.is_summed(axis) and any(_ends_in(o, axis) for o in self._operands))
        return widest(axis.extent, self.contraction.item_bits) if in_vectors else 1

    def is_summed(self, axis: Axis) -> bool:
        """Return whether a reduction may be done in steps along an axis. Windows are reduced as a whole."""
        return axis.reduced and axis.extent > 1 and not slides(self.contraction, axis)

    @property
    def stepped(self) -> list[Axis]:
        """Return the axes along which a reduction may be done in steps."""
        return [axis for axis in self.contraction.reduction if self.is_summed(axis)]

    def is_alone(self, axis: Axis) -> bool:
        """Return whether exactly one operand has the axis, so that the other is reused along it."""
        return sum(axis.place in operand.axes for operand in self._operands) == 1

    def turned(self, operand: Operand) -> tuple[Axis, int] | None:
        """Return the main axis of an operand and its dimension, or None if that is the last dimension."""
        axis = next((a for a in self.main if a is not None and a.place in operand.axes), None)
        if axis is None:
            return None
        places = [i for i, index in enumerate(operand.indices) if _tvm.uses(index, axis.variable)]
        return (axis, places[0]) if len(places) == 1 and places[0] != len(operand.indices) - 1 else None

    def copied(self, operand: Operand, *, asynchronously: bool) -> int:
        """Return how many elements of an operand a thread copies at once.

        They are neighbours in memory and in every tile. Asynchronous copies also write them as neighbours.
        """
        if asynchronously and self.turned(operand) is not None:
            return 1
        return next((self.lanes(a) for a in self.contraction.axes if _ends_in(operand, a)), 1)

    @property
    def slides(self) -> bool:
        """Return whether a window slides over an operand."""
        return any(slides(self.contraction, axis) for axis in self.contraction.reduction if axis.extent > 1)

    @property
    def most_threads(self) -> int:
        """Return the threads that would compute the whole output."""
        return math.prod(axis.extent // self.lanes(axis) for axis in self.contraction.spatial)

    @property
    def _operands(self) -> tuple[Operand, ...]:
        """Return the two factors."""
        return self.contraction.operands


def thread_axes(contraction: Contraction) -> ThreadAxes:
    """Return the axes of a contraction, with the main ones: the output's contiguous axis, or an operand's longest."""
    left, right = contraction.operands
    return ThreadAxes(contraction, (_main(contraction, left, right), _main(contraction, right, left)))


def _main(contraction: Contraction, operand: Operand, other: Operand) -> Axis | None:
    """Return the main axis of an operand."""
    alone = [a for a in contraction.spatial if a.extent > 1 and a.place in operand.axes and a.place not in other.axes]
    contiguous = [a for a in alone if a.place == contraction.written[-1]]
    return contiguous[0] if contiguous else max(alone, key=lambda a: (a.extent, a.place), default=None)


def _ends_in(operand: Operand, axis: Axis) -> bool:
    """Return whether an axis indexes an operand's last dimension."""
    return bool(operand.indices[-1].same_as(axis.variable))


def widest(extent: int, bits: int) -> int:
    """Return the elements, of `bits` bits each, of the widest vector that divides an extent."""
    return next(width for width in (LANES, 2, 1) if extent % width == 0 and width * bits <= _VECTOR)


def moved_last(place: int) -> Callable[..., list[Any]]:
    """Return the map of a buffer's indices that moves a dimension last."""
    return lambda *indices: [*indices[:place], *indices[place + 1 :], indices[place]]


def multiple_of(extent: int) -> int:
    """Return the multiple that an axis should be padded to, 1 if it needs no padding."""
    if extent < LANES:
        return 1

    def time(multiple: int) -> float:
        padded = -(-extent // multiple) * multiple
        return padded * next(slower for by, slower in reversed(_MULTIPLES) if padded % by == 0)

    best = min((by for by, _ in _MULTIPLES), key=time)
    return best if extent % best else 1
