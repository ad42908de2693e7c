"""What a GPU's threads do with the axes of a contraction: which lie in vectors, which is turned round, which is padded.

In: a `Contraction`. Out: the main axis of each operand, vectors along axes and in copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.spaces.contraction import Axis, Contraction, Operand
from felixlike.spaces.gpu.thread_bounds import WARP
from felixlike.spaces.roles import slides

LANES = 4
"""Elements of float32 in the longest vector that is loaded at once."""
_VECTOR = 128
"""Bits that a thread loads or stores at once."""
_MULTIPLES = ((1, 1.5), (2, 1.25), (4, 1.1), (8, 1.04), (16, 1.01), (32, 1.0))
"""(multiple, how many times slower tiles of it are, about): what an axis of a plain product may be padded to.  Chosen
by hand: no benchmark compares others."""


@dataclass(frozen=True, slots=True)
class ThreadAxes:
    """main: for each operand the axis along which a thread has neighbouring outputs: one that it has and the other has
    not; None where there is none."""

    contraction: Contraction
    main: tuple[Axis | None, Axis | None]

    @property
    def lane_level(self) -> str:
        """What neighbours along a summed axis are for: of vectors, or of one instruction."""
        return "inner"

    def window_level(self, axis: Axis) -> str:
        """Whether a window is gone through in a step of a block, "inner", or is several of them, "outer"."""
        return "inner"

    @property
    def least_steps(self) -> int:
        """Of the reduction, what a step of a block has at least."""
        return LANES

    @property
    def least_bytes(self) -> int:
        """Of shared memory, what a block takes at least; 0 where it is little."""
        return 0

    @property
    def least_threads(self) -> int:
        """Of a block that computes enough for so many."""
        return WARP

    def lanes(self, axis: Axis) -> int:
        """Neighbours along an axis that every tile is made of: elements of a vector, 1 where none is wanted."""
        wanted = axis in self.main or (self.is_summed(axis) and any(_ends_in(o, axis) for o in self._operands))
        return widest(axis.extent, self.contraction.item_bits) if wanted else 1

    def is_summed(self, axis: Axis) -> bool:
        """Whether a reduction may be done in steps along an axis; windows are summed up whole."""
        return axis.reduced and axis.extent > 1 and not slides(self.contraction, axis)

    @property
    def stepped(self) -> list[Axis]:
        """The axes along which a reduction may be done in steps."""
        return [axis for axis in self.contraction.reduction if self.is_summed(axis)]

    def is_alone(self, axis: Axis) -> bool:
        """Whether one operand alone has the axis, so that the other is used again along it."""
        return sum(axis.place in operand.axes for operand in self._operands) == 1

    def turned(self, operand: Operand) -> tuple[Axis, int] | None:
        """The main axis of an operand and its dimension, where that is not the last one."""
        axis = next((a for a in self.main if a is not None and a.place in operand.axes), None)
        if axis is None:
            return None
        places = [i for i, index in enumerate(operand.indices) if _tvm.uses(index, axis.variable)]
        return (axis, places[0]) if len(places) == 1 and places[0] != len(operand.indices) - 1 else None

    def copied(self, operand: Operand, *, asynchronously: bool) -> int:
        """Elements of an operand that a thread copies at once: neighbours in memory, and in every tile; asynchronous
        copies write them as neighbours, too."""
        if asynchronously and self.turned(operand) is not None:
            return 1
        return next((self.lanes(a) for a in self.contraction.axes if _ends_in(operand, a)), 1)

    @property
    def slides(self) -> bool:
        """Whether a window slides over an operand."""
        return any(slides(self.contraction, axis) for axis in self.contraction.reduction if axis.extent > 1)

    @property
    def most_threads(self) -> int:
        """Threads of a block that would compute the whole output."""
        return math.prod(axis.extent // self.lanes(axis) for axis in self.contraction.spatial)

    @property
    def _operands(self) -> tuple[Operand, Operand]:
        return self.contraction.operands


def thread_axes(contraction: Contraction) -> ThreadAxes:
    """The main axes: what the output is contiguous along, or an operand's longest."""
    left, right = contraction.operands
    return ThreadAxes(contraction, (_main(contraction, left, right), _main(contraction, right, left)))


def _main(contraction: Contraction, own: Operand, other: Operand) -> Axis | None:
    alone = [a for a in contraction.spatial if a.extent > 1 and a.place in own.axes and a.place not in other.axes]
    contiguous = [a for a in alone if a.place == contraction.written[-1]]
    return contiguous[0] if contiguous else max(alone, key=lambda a: (a.extent, a.place), default=None)


def _ends_in(operand: Operand, axis: Axis) -> bool:
    return bool(operand.indices[-1].same_as(axis.variable))


def widest(extent: int, bits: int) -> int:
    """Elements, of so many bits, of the widest vectors that an axis is made of."""
    return next(width for width in (LANES, 2, 1) if extent % width == 0 and width * bits <= _VECTOR)


def moved_last(place: int) -> Callable[..., list[Any]]:
    """The map of a buffer's indices that puts a dimension last."""
    return lambda *indices: [*indices[:place], *indices[place + 1 :], indices[place]]


def multiple_of(extent: int) -> int:
    """What an axis should be a multiple of; 1 where it is fine as it is."""
    if extent < LANES:
        return 1

    def time(multiple: int) -> float:
        padded = -(-extent // multiple) * multiple
        return padded * next(slower for by, slower in reversed(_MULTIPLES) if padded % by == 0)

    best = min((by for by, _ in _MULTIPLES), key=time)
    return best if extent % best else 1
