"""Schedule contractions on GPUs with a tile of the output in the registers of every thread.

    for i, j:                 blocks (i_0, j_0):
        for k:                    for k_0:
            C[i, j] += …     →        A_shared[k, i] = A[i, k];  B_shared[k, j] = B[k, j]      all threads together
                                      unrolled k_1:
                                          C_local[i, j] += A_shared[k, i] · B_shared[k, j]     4 i and 4 j a thread,
                                  C[i, j] = relu(C_local[i, j] + b[j])                         v times in each direction

Both operands are in shared memory. The last axis is the one along which a thread has neighbouring outputs, so four
elements are loaded at once, whatever the order in global memory. Rows are shifted by four banks against each other, so
that copies which transpose a tile do not wait for one bank. A thread with more than four outputs in one direction has
them in groups of four, as far apart as the groups of all threads together (virtual threads). The groups that a warp
loads at a time are then contiguous. The CUDA compiler unrolls the loops of a tile, not TVM: sources stay short and
compile quickly. Up to three tiles are in flight: the next ones are copied, asynchronously, while one is in use.

If the output is too small to occupy all multiprocessors, the reduction is split among blocks. A second kernel sums the
parts, which are in global memory, and computes the epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Buffer, LoopRef, Schedule
from felixlike.codegen.annotations import TensorCores
from felixlike.hardware import FLOAT32, Device
from felixlike.hardware.occupancy import version_of
from felixlike.spaces.blocks import copy_operand, in_step_on_gpus, sampled
from felixlike.spaces.contraction import Axis, Contraction, Operand, read_contraction, without_groups, without_points
from felixlike.spaces.gpu.packed_operands import pack_operands
from felixlike.spaces.gpu.thread_axes import LANES, ThreadAxes, moved_last, multiple_of, thread_axes
from felixlike.spaces.gpu.thread_bounds import WARP, ThreadBounds, note_thread_bounds, note_threads
from felixlike.spaces.gpu.thread_loops import Loops, bind, overlap
from felixlike.spaces.gpu.warp_tile import WarpAxes, align_for_warps, split_for_warps, warp_axes, warp_multiples
from felixlike.spaces.padding import is_plain
from felixlike.spaces.surroundings import settle_surroundings

_ASYNCHRONOUS_FROM = 80
"""The first architecture that copies into shared memory asynchronously (`cp.async`)."""

_REGISTERS = 65536
"""Registers of a multiprocessor."""
_COOPERATIVE = "meta_schedule.cooperative_fetch"
"""The annotation of copies that all threads of a block make together."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of a tile, and when the reduction may be split among blocks.

    It may be split if `small`, `long` and `long_axis` all allow it: 64×64 tiles would leave multiprocessors idle. These
    three are chosen by hand.

    Attributes:
        sums: Upper limit on outputs of a thread in general.
        sliding: Upper limit on outputs of a thread where a window slides: the compiler then keeps elements for several
            taps. With 128 for both, four of 154 random points of eleven operators spilled.
        code: Upper limit on unrolled multiplications, in all stages together: 48 KiB of code.
        steps: Upper limit on steps of each reduction axis that are in shared memory at a time.
        stages: Copies of both shared tiles, one sketch each. With one, all threads wait until it is filled. With more,
            the next ones are filled while one is in use.
        own: Upper limit along one axis on neighbouring outputs of a thread where no vectors are possible.
        threads: Upper limit along one axis on threads of a tile.
        summing: Upper limit along one axis on threads of a block that sums parts.
        small: Elements of the output per multiprocessor, fewer of which allow a split.
        long: Least steps of the reduction, windows included.
        long_axis: Least steps of its longest axis.
    """

    sums: int = 128
    sliding: int = 64
    code: int = 3072
    steps: int = 32
    stages: tuple[int, ...] = (1, 2, 3)
    own: int = 8
    threads: int = 64
    summing: int = 256
    small: int = 4096
    long: int = 512
    long_axis: int = 32


_LIMITS = _Limits()


def thread_tiles(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """Return new schedules with the block tiled for threads, or [] if the rule does not apply.

    It does not apply if the block is no contraction or is among other reductions.
    """
    for_warps = schedule.copy() if device.precision != FLOAT32.name else None
    name = str(schedule.get(block).name_hint)
    prepared = _prepared(schedule, block)
    if prepared is None:
        return []
    contraction, copies = pack_operands(schedule, prepared.block, prepared.contraction, prepared.copies)
    prepared = replace(prepared, contraction=contraction, copies=copies)
    tiled = _variants(schedule, prepared, thread_axes(prepared.contraction), device)
    return tiled if for_warps is None else tiled + _warp_tiles(for_warps, for_warps.get_sblock(name), device)


def _warp_tiles(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """Return schedules for tensor cores, or [] if the contraction's types or sizes do not suit them."""
    statement = schedule.get(block)
    if {str(region.source.dtype) for region in (*statement.reads, *statement.writes)} != {FLOAT32.name}:
        return []
    if read_contraction(schedule, block) is not None:
        without_points(schedule, block)
    prepared = _prepared(schedule, block, warp_multiples)
    axes = None if prepared is None else warp_axes(prepared.contraction, device.precision)
    return [] if prepared is None or axes is None else _variants(schedule, prepared, axes, device)


def _variants(schedule: Schedule, prepared: _Prepared, axes: ThreadAxes, device: Device) -> list[Schedule]:
    """Return a new schedule for each number of stages, with whole reductions and with split ones."""
    summed = [a.extent for a in axes.stepped]
    counts = _LIMITS.stages if version_of(device.mcpu) >= _ASYNCHRONOUS_FROM else _LIMITS.stages[:1]
    variants = [(stages, False) for stages in counts if stages == 1 or math.prod(summed) >= axes.least_steps * stages]
    outputs, steps = (math.prod(a.extent for a in of) for of in (axes.contraction.spatial, axes.contraction.reduction))
    if outputs < _LIMITS.small * device.cores and steps >= _LIMITS.long and max(summed, default=1) >= _LIMITS.long_axis:
        variants += [(stages, True) for stages in counts[:2]]
    schedules = []
    for stages, parts in variants:
        if axes.least_bytes * stages > device.tile_bytes:
            continue
        new = schedule.copy()
        _tile(new, prepared.of(schedule, new), axes, stages, parts=parts)
        schedules.append(new)
    return schedules


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A contraction that is ready to be tiled, with its epilogue and the blocks that compute its operands."""

    block: BlockRef
    contraction: Contraction
    epilogue: Any | None
    copies: tuple[Any, ...]

    def of(self, schedule: Schedule, other: Schedule) -> _Prepared:
        """Return the same blocks in a copy of the schedule."""
        block, epilogue, *copies = (
            None if reference is None else other.get_sblock(str(schedule.get(reference).name_hint))
            for reference in (self.block, self.epilogue, *self.copies)
        )
        return _Prepared(block, self.contraction, epilogue, tuple(copies))


def _prepared(
    schedule: Schedule, block: BlockRef, multiples: Callable[[Contraction], list[int]] | None = None
) -> _Prepared | None:
    """Pad a contraction and inline its surroundings. `multiples` returns the multiples that its axes are padded to."""
    if read_contraction(schedule, block) is None:
        return None
    without_groups(schedule, block)
    contraction = read_contraction(schedule, block)
    if contraction is None or max(axis.extent for axis in contraction.reduction) == 1:
        return None
    first, second = (schedule.get(block).reads[operand.read].source for operand in contraction.operands)
    if first.same_as(second):
        return None  # one copy in shared memory would have to serve both
    padding = [multiple_of(a.extent) for a in contraction.axes] if multiples is None else multiples(contraction)
    contraction = _padded(schedule, block, contraction, padding)
    surroundings = settle_surroundings(schedule, block)
    return None if surroundings is None else _Prepared(block, contraction, surroundings.epilogue, surroundings.copies)


def _padded(schedule: Schedule, block: BlockRef, contraction: Contraction, padding: list[int]) -> Contraction:
    """Pad the axes of a contraction to multiples where that helps, and return the contraction."""
    if max(padding) == 1 or not is_plain(contraction):
        return contraction
    try:
        schedule.pad_einsum(block, padding)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return contraction
    return read_contraction(schedule, block) or contraction


def _tile(schedule: Schedule, prepared: _Prepared, axes: ThreadAxes, stages: int, *, parts: bool) -> None:
    """Tile a contraction. `parts` says whether its reduction is split among blocks."""
    block, last, operands = prepared.block, prepared.epilogue, axes.contraction.operands
    sources = [schedule.get(block).reads[operand.read].source for operand in operands]
    levels = _split_sums(schedule, block, axes, parts=parts)
    if parts:
        total, block = block, schedule.rfactor(next(loop for loop, level in levels if level == "part"), 0)
        levels = [(loop, level) for loop, (_, level) in zip(schedule.get_loops(block), levels, strict=True)]
        _sum_up(schedule, total, last, axes.contraction)
        last = None
    if last is None:
        last = schedule.cache_write(block, 0, "local")
    else:
        schedule.set_scope(block, 0, "local")
    fetches = [_shared(schedule, block, o, source, axes, last) for o, source in zip(operands, sources, strict=True)]
    for copy in prepared.copies:
        schedule.compute_inline(copy)
    loops = _split(schedule, axes, levels)
    schedule.reorder(*loops.all)
    group = bind(schedule, loops)
    if axes.most_threads >= 2 * axes.least_threads:
        note_threads(schedule, block, axes.least_threads)
    most = _LIMITS.sliding if axes.slides else _LIMITS.sums
    note_thread_bounds(schedule, block, ThreadBounds(most, _REGISTERS, _LIMITS.code // stages))
    schedule.reverse_compute_at(last, group, preserve_unit_loops=True)
    _write_vectors(schedule, last, block, axes)
    home = loops.outer[-1] if loops.outer else group
    if stages > 1:
        home = schedule.fuse(*loops.outer)
        overlap(schedule, home, stages)
    for fetch, operand in zip(fetches, operands, strict=True):
        schedule.compute_at(fetch, home, preserve_unit_loops=True)
        schedule.fuse(*schedule.get_loops(fetch)[-len(operand.indices) :])
        vector = axes.copied(operand, asynchronously=stages > 1)
        # MetaSchedule's postprocessor reads a decision.
        schedule.annotate(fetch, _COOPERATIVE, schedule.sample_categorical([vector], [1.0]))
    for loop in (*loops.inner, *loops.own, *loops.step[1:]):
        schedule.unroll(loop)
    schedule.annotate(loops.inner[0], "pragma_unroll_explicit", 0)
    if isinstance(axes, WarpAxes):
        TensorCores(axes.precision).put(schedule, loops.step[0])


def _split_sums(
    schedule: Schedule, block: BlockRef, axes: ThreadAxes, *, parts: bool
) -> list[tuple[LoopRef, Axis | str]]:
    """Split the reduction, by sampled factors, into parts, steps of a block and iterations of a step.

    Returns the loops of the block with the role of each: an axis of the output, or a level's name.
    """
    summed = axes.stepped
    longest = max(summed, key=lambda axis: axis.extent, default=None) if parts else None
    levels: list[tuple[LoopRef, Axis | str]] = []
    for axis, loop in zip(axes.contraction.axes, schedule.get_loops(block), strict=True):
        if not axis.reduced:
            levels.append((loop, axis))
            continue
        if axis not in summed:
            levels.append((loop, axes.window_level(axis)))
            continue
        lanes = axes.lanes(axis)
        vectors, *lane = schedule.split(loop, [None, lanes], disable_predication=True) if lanes > 1 else [loop]
        names = ["part"] * (axis is longest) + ["outer", "inner"]
        factors = sampled(schedule, vectors, len(names), _LIMITS.steps // lanes)
        levels += [*zip(factors, names, strict=True), *((one, axes.lane_level) for one in lane)]
    return levels


def _split(schedule: Schedule, axes: ThreadAxes, levels: Sequence[tuple[LoopRef, Axis | str]]) -> Loops:
    """Return the loops of a tile: those of the reduction, and every axis of the output split by sampled factors."""
    tile = Loops()
    named = {"part": tile.blocks, "outer": tile.outer, "inner": tile.inner, "step": tile.step}
    for loop, level in levels:
        if isinstance(level, str):
            named[level].append(loop)
    last = axes.contraction.written[-1]
    spatial = [(loop, axis) for loop, axis in levels if isinstance(axis, Axis)]
    if isinstance(axes, WarpAxes):
        split_for_warps(schedule, axes, spatial, tile)
        return tile
    for loop, axis in sorted(spatial, key=lambda pair: pair[1].place == last):  # neighbouring threads along it
        lanes = axes.lanes(axis)
        if axis.extent == 1:
            tile.blocks.append(loop)
            continue
        if lanes > 1:
            vectors, lane = schedule.split(loop, [None, lanes], disable_predication=True)
            outer, virtual, thread = sampled(schedule, vectors, 3, _LIMITS.threads)
            tile.virtual.append(virtual)
            tile.own.append(lane)
        elif axes.is_alone(axis):
            outer, thread, own = sampled(schedule, loop, 3, _LIMITS.own)
            tile.own.append(own)
        else:
            outer, thread = sampled(schedule, loop, 2, _LIMITS.threads)
        tile.blocks.append(outer)
        tile.threads.append(thread)
    return tile


def _sum_up(schedule: Schedule, total: BlockRef, epilogue: Any | None, contraction: Contraction) -> None:
    """Schedule the kernel that sums the parts, with the epilogue."""
    loops, home = Loops(), epilogue
    if epilogue is None:
        home = total
    else:
        schedule.set_scope(total, 0, "local")
    for loop in list(schedule.get_loops(home))[: sum(map(_tvm.is_spatial, schedule.get(home).iter_vars))]:
        if int(schedule.get(loop).extent) == 1:
            loops.blocks.append(loop)
            continue
        outer, thread = sampled(schedule, loop, 2, _LIMITS.summing)
        loops.blocks.append(outer)
        loops.threads.append(thread)
    schedule.reorder(*loops.blocks, *loops.threads)
    group = bind(schedule, loops)
    if math.prod(axis.extent for axis in contraction.spatial) >= 2 * WARP:
        note_threads(schedule, home)
    if epilogue is not None:
        schedule.compute_at(total, group, preserve_unit_loops=True)


def _shared(
    schedule: Schedule, block: BlockRef, operand: Operand, source: Buffer, axes: ThreadAxes, last: BlockRef
) -> Any:
    """Return the block that copies an operand into shared memory, its main axis last."""
    reads = schedule.get(block).reads
    fetch = copy_operand(
        schedule, block, next(i for i, r in enumerate(reads) if r.source.same_as(source)), "shared", last
    )
    if isinstance(axes, WarpAxes):
        align_for_warps(schedule, axes, fetch, operand)
        return fetch
    turned = axes.turned(operand)
    if turned is not None:
        axis, place = turned
        schedule.transform_layout(fetch, ("write", 0), moved_last(place))
        if axes.lanes(axis) == LANES:
            schedule.storage_align(fetch, 0, len(operand.indices) - 2, 2 * LANES, LANES)
    return fetch


def _write_vectors(schedule: Schedule, last: BlockRef, block: BlockRef, axes: ThreadAxes) -> None:
    """Vectorize the write-back of a tile if its elements are contiguous in the output and none is left out."""
    axis = next((a for a in axes.contraction.spatial if a.place == axes.contraction.written[-1]), None)
    whole = axis is not None and int(schedule.get(last).iter_vars[-1].dom.extent) == axis.extent
    if axis is not None and whole and axes.lanes(axis) > 1 and in_step_on_gpus(schedule, last, block):
        schedule.vectorize(schedule.get_loops(last)[-1])
