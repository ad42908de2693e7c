"""Schedule contractions for a GPU's tensor cores: the 32 threads of a warp compute a tile of the output together.

    a warp's 32 × 16 outputs, in each of its threads (g, t), g < 8, t < 4:
        for k in 16:                      ← one or two instructions for each 16 × 8 of them
            for r in 4, c in 4:
                C_local[4·g + r, 4·t + c] += A_shared[4·g + r, k] · B_shared[k, 4·t + c]

The loops describe what the instruction computes and which thread has which output. `codegen/passes/tensor_cores.py`
replaces them by the instruction. All other code sees the loops of a thread tile. The order of a tile's rows and columns
in the instruction does not matter as long as they are distinct: a thread has neighbours here, and rows g and g + 8 and
columns 2·t and 2·t + 1 in the instruction.

Operands have the same order in shared memory as in global memory, so that vectors are copied at once. Rows are shifted
against each other so that the threads of a warp, which load four steps of a row each, or four rows of a step, access
different banks. If the tile's rows or columns are not a multiple of 32 or 16, threads have two of them instead of four.
If one axis is too short, a tile extends along two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, LoopRef, Schedule
from felixlike.hardware import PRECISIONS
from felixlike.spaces.blocks import sampled
from felixlike.spaces.contraction import Axis, Contraction, Operand
from felixlike.spaces.gpu.thread_axes import LANES, ThreadAxes, widest
from felixlike.spaces.gpu.thread_bounds import WARP
from felixlike.spaces.gpu.thread_loops import Loops

STEP = 16
"""Reduction steps of each instruction of float16 or bfloat16. Two instructions of TF32 do as many."""
ROWS, COLUMNS = 8, 4
"""Threads of a warp along each direction of its tile (PTX ISA, Matrix fragments for mma.m16n8k8 and .m16n8k16)."""
_RUNS = (4, 2)
"""Neighbouring outputs of a thread in one direction, the better first."""
_LEAST = 8
"""Outputs along an axis below which tensor cores would be mostly idle."""
_MOST_WARPS, _MOST_OWN = 8, 4
"""Upper limits along one axis: warps of a block, and tiles of a warp along axes outside of the tile."""
_BANKS = 32
"""Banks of shared memory, one word of 32 bits wide each."""
_WASTED = 1.1
"""Upper limit on the ratio by which padding to longer runs may lengthen an axis. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Side:
    """One direction of a warp's tile."""

    threads: int  # along it
    run: int  # neighbouring outputs of a thread
    parts: tuple[tuple[Axis, int], ...]  # (axis, extent of the tile along it), the innermost axis last

    def part(self, axis: Axis) -> int:
        """Return the extent of a tile along an axis."""
        return next((size for part_axis, size in self.parts if part_axis is axis), 1)

    def run_along(self, axis: Axis) -> int:
        """Return how many neighbours along an axis a thread has."""
        return self.run if axis is self.parts[-1][0] else 1


@dataclass(frozen=True, slots=True)
class WarpAxes(ThreadAxes):
    """How a warp's tile uses the axes of a contraction."""

    rows: Side
    columns: Side
    step: Axis  # that instructions reduce
    precision: int  # index in `PRECISIONS`

    @property
    def lane_level(self) -> str:
        """Return "step": the lanes along the reduction axis belong to one instruction."""
        return "step"

    def window_level(self, axis: Axis) -> str:
        """Return "outer" for the outermost of several windows: weights of all taps would fill the shared memory."""
        windows = [a for a in self.contraction.reduction if a.extent > 1 and not self.is_summed(a)]
        return "outer" if len(windows) > 1 and axis is windows[0] else "inner"

    @property
    def least_steps(self) -> int:
        """Return the reduction steps of an instruction."""
        return STEP

    def lanes(self, axis: Axis) -> int:
        """Return the steps of an instruction for the reduction axis, else a thread's neighbours along an axis."""
        if axis is self.step:
            return STEP
        return next((side.run_along(axis) for side in self.sides if side.part(axis) > 1), 1)

    def copied(self, operand: Operand, *, asynchronously: bool) -> int:
        """Return how many elements a thread copies at once. Tiles have the operand's order."""
        last = [axis for axis in self.contraction.axes if operand.indices[-1].same_as(axis.variable)]
        return widest(self._whole(last[0]), self.contraction.item_bits) if last else 1

    @property
    def most_threads(self) -> int:
        """Return the threads that would compute the whole output."""
        return WARP * prod(a.extent // self._whole(a) for a in self.contraction.spatial if self.is_alone(a))

    @property
    def least_threads(self) -> int:
        """Return a warp, or two where a window slides: one would copy so many single elements that addresses spill."""
        return 2 * WARP if self.slides else WARP

    @property
    def least_bytes(self) -> int:
        """Return the shared memory in bytes of both operands of a warp's tile, for one of its steps."""
        ends = {a.variable: self._whole(a) - 1 for a in self.contraction.axes}
        one = sum(self._least_bytes(operand, ends) for operand in self.contraction.operands)
        return one * 11 // 10 if self.slides else one  # a second warp's window overlaps

    def _least_bytes(self, operand: Operand, ends: Mapping[Any, int]) -> int:
        """Return the shared memory of one operand in bytes, with its shifted rows."""
        begins = dict.fromkeys(ends, 0)
        shape = [
            1 + int(_tvm.simplify(_tvm.substituted(index, ends) - _tvm.substituted(index, begins)))
            for index in operand.indices
        ]
        dimension, factor, offset = _aligned(self, operand) or (0, 1, 0)
        inner = prod(shape[dimension + 1 :])
        step = inner + (offset - inner) % factor
        return step * prod(shape[: dimension + 1]) * self.contraction.item_bits // 8

    def _whole(self, axis: Axis) -> int:
        """Return how much of an axis is in a warp's tile and a step of it."""
        if axis is self.step:
            return STEP
        if axis.reduced:
            return axis.extent if not self.is_summed(axis) and self.window_level(axis) == "inner" else 1
        return next((side.part(axis) for side in self.sides if side.part(axis) > 1), 1)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return rows and columns."""
        return self.rows, self.columns

    def side_of(self, operand: Operand) -> Side:
        """Return the side along which an operand extends."""
        return self.rows if self.rows.parts[-1][0].place in operand.axes else self.columns

    def along(self, operand: Operand) -> bool:
        """Return whether an operand's steps of the reduction are contiguous in memory."""
        return bool(operand.indices[-1].same_as(self.step.variable))


def warp_multiples(contraction: Contraction) -> list[int]:
    """Return the multiple that each axis should be padded to, 1 where padding has no use."""
    multiples = [1] * len(contraction.axes)
    chosen = _chosen(contraction)
    if chosen is None:
        return multiples
    left, right, step = chosen
    if left and right:
        multiples[left[-1].place] = _multiple(left[-1].extent, ROWS)
        multiples[right[-1].place] = _multiple(right[-1].extent, COLUMNS)
    multiples[step.place] = STEP
    return multiples


def _multiple(extent: int, threads: int) -> int:
    """Return the longer run's multiple unless it pads an axis too much."""
    longer, shorter = (threads * run for run in _RUNS)
    lengths = [-(-extent // by) * by for by in (longer, shorter)]
    return longer if lengths[0] <= _WASTED * lengths[1] else shorter


def warp_axes(contraction: Contraction, precision: str) -> WarpAxes | None:
    """Return the axes of a warp's tile, or None if no axes have suitable sizes."""
    chosen = _chosen(contraction)
    if chosen is None:
        return None
    left, right, step = chosen
    rows, columns = _side(left, ROWS), _side(right, COLUMNS)
    if rows is None or columns is None or step.extent % STEP:
        return None
    number = next(i for i, known in enumerate(PRECISIONS) if known.name == precision)
    return WarpAxes(contraction, (rows.parts[-1][0], columns.parts[-1][0]), rows, columns, step, number)


def _chosen(contraction: Contraction) -> tuple[list[Axis], list[Axis], Axis] | None:
    """Return the axes that may be rows, those that may be columns, the best last, and the axis reduced in steps."""
    first, second = contraction.operands
    left, right = _alone(contraction, first, second), _alone(contraction, second, first)
    last = contraction.written[-1]
    if any(axis.place == last for axis in left):
        left, right = right, left
    summed = [a for a in ThreadAxes(contraction, (None, None)).stepped if _in_both(contraction, a)]
    steps = max(summed, key=lambda a: (_ends(contraction, a) and a.extent >= STEP, a.extent, -a.place), default=None)
    if steps is None or steps.extent < STEP or not _enough(left) or not _enough(right):
        return None
    return left, right, steps


def _alone(contraction: Contraction, operand: Operand, other: Operand) -> list[Axis]:
    """Return the output's axes that `operand` has and `other` does not, the best last."""
    axes = [a for a in contraction.spatial if a.extent > 1 and a.place in operand.axes and a.place not in other.axes]
    return sorted(axes, key=lambda a: (a.place == contraction.written[-1], a.extent, a.place))


def _in_both(contraction: Contraction, axis: Axis) -> bool:
    """Return whether both operands have an axis."""
    return all(axis.place in operand.axes for operand in contraction.operands)


def _ends(contraction: Contraction, axis: Axis) -> bool:
    """Return whether an axis is the last dimension of an operand."""
    return any(operand.indices[-1].same_as(axis.variable) for operand in contraction.operands)


def _enough(axes: Sequence[Axis]) -> bool:
    """Return whether axes have enough outputs for tensor cores."""
    return prod(axis.extent for axis in axes) >= _LEAST


def _side(axes: Sequence[Axis], threads: int) -> Side | None:
    """Return a side along these axes, or some of them, or None if no tile divides them."""
    for run in _RUNS:
        left = threads * run
        parts: list[tuple[Axis, int]] = []
        for axis in reversed(axes):
            size = gcd(axis.extent, left)
            if size >= (run if not parts else 2):
                parts.append((axis, size))
                left //= size
        if left == 1:
            return Side(threads, run, tuple(reversed(parts)))
    return None


def split_for_warps(schedule: Schedule, axes: WarpAxes, spatial: Sequence[tuple[LoopRef, Axis]], found: Loops) -> None:
    """Split the output's axes, by sampled factors, into blocks, virtual threads, warps and a thread's own loops."""
    loops = {axis.place: loop for loop, axis in spatial}
    threads: list[Any] = []
    for side in axes.sides:
        for axis, size in side.parts:
            run = side.run_along(axis)
            sizes = [size // run] + [run] * (run > 1)
            warps, thread, *own = schedule.split(loops.pop(axis.place), [None, *sizes], disable_predication=True)
            outer, virtual, warp = sampled(schedule, warps, 3, _MOST_WARPS)
            found.blocks.append(outer)
            found.virtual.append(virtual)
            found.threads.append(warp)
            threads.append(thread)
            found.step += own
    found.threads += threads  # a block's threads are its warps, each with first the rows and then the columns
    for loop, axis in spatial:
        if axis.place not in loops:
            continue
        if axes.is_alone(axis) and axis.extent > 1:
            loop, warp, own = sampled(schedule, loop, 3, _MOST_OWN)
            found.threads.insert(0, warp)
            found.own.append(own)
        found.blocks.insert(0, loop)


def align_for_warps(schedule: Schedule, axes: WarpAxes, fetch: BlockRef, operand: Operand) -> None:
    """Shift the rows of an operand's shared tile so that a warp's threads access different banks."""
    aligned = _aligned(axes, operand)
    if aligned is not None:
        schedule.storage_align(fetch, 0, *aligned)


def _aligned(axes: WarpAxes, operand: Operand) -> tuple[int, int, int] | None:
    """Return (dimension, factor, offset) by which rows are shifted, or None if they are not shifted.

    Threads (g, t) load from rows `stride` times g: the steps 4·t … 4·t + 3 at once if some operand has them contiguous,
    else the steps t, t + 4 …, a word at a time along a row, or a run of them along it.
    """
    side = axes.side_of(operand)
    stride = side.run if side is axes.rows else side.run // 2
    dimensions = [_dimension(operand, axis) for axis in (axes.step, side.parts[-1][0])]
    if None in dimensions or dimensions[0] == dimensions[1]:
        return None
    step, row = (int(dimension) for dimension in dimensions if dimension is not None)
    if row > step:  # threads t are a row of the tile apart, threads g are neighbours
        factor, offset = _BANKS // 2, _BANKS // 4
    elif any(axes.along(other) for other in axes.contraction.operands):
        factor, offset = _BANKS // stride, _BANKS // 2 // stride
    else:
        factor, offset = max(2 * LANES // stride, 2), max(LANES // stride, 1)
    vectors = axes.copied(operand, asynchronously=False)
    return None if offset % vectors else (min(step, row), factor, offset)


def _dimension(operand: Operand, axis: Axis) -> int | None:
    """Return the dimension of an operand that an axis indexes."""
    places = [i for i, index in enumerate(operand.indices) if _tvm.uses(index, axis.variable)]
    return places[0] if len(places) == 1 else None
