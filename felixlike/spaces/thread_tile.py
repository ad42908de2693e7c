"""Thread tile: a contraction on a GPU whose threads keep a tile of the output in registers each.

    for i, j:                 blocks (i_0, j_0):
        for k:                    for k_0:
            C[i, j] += …     →        A_shared[k, i] = A[i, k];  B_shared[k, j] = B[k, j]      all threads together
                                      unrolled k_1:
                                          C_local[i, j] += A_shared[k, i] · B_shared[k, j]     4 i and 4 j a thread,
                                  C[i, j] = relu(C_local[i, j] + b[j])                         v times in each direction

Both operands lie in shared memory with the axis last along which a thread has neighbouring outputs, so that four of
them are loaded at once, whichever way they lie in global memory; rows are shifted by four banks against each other, so
that copies which turn a tile round do not wait for one bank. Where a thread has more than four outputs in one direction
it has them in groups of four, as far apart as all threads' groups together (virtual threads): then the groups that a
warp loads at a time lie side by side. The loops of a tile are unrolled by the CUDA compiler and not by TVM: sources
stay short, and compile quickly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from felixlike import tvmlib
from felixlike.codegen.marks import Asynchronous
from felixlike.hardware import Device
from felixlike.spaces.contraction import Axis, Contraction, Operand, read_contraction, without_groups
from felixlike.spaces.padding import is_plain
from felixlike.spaces.roles import slides
from felixlike.spaces.surroundings import settle_surroundings
from felixlike.spaces.thread_bounds import ThreadBounds, note_thread_bounds
from felixlike.tvmlib.typing import BlockRef, LoopRef, Schedule

_LANES = 4
"""Elements of float32 in the longest vector that is loaded at once."""
_REGISTERS = 65536
"""Of a multiprocessor."""
_MOST_ACCUMULATORS, _MOST_SLIDING = 128, 64
"""Outputs of a thread; fewer where a window slides, since the compiler then keeps elements for several taps.  Of 154
random points of eleven operators four spilled with 128 for all."""
_CODE = 3072
"""Multiplications that are written out one after the other, in all stages together: 48 KiB of code."""
_MOST_STEPS = 32
"""Largest share of the reduction that is in shared memory at a time, for each of its axes."""
_STAGES = (1, 2, 3)
"""Copies of both shared tiles: with one, all threads wait for it to be filled; with more, the next ones are filled while
one is in use.  A sketch each."""
_MOST_OWN = 8
"""Most neighbouring outputs of a thread where no vectors are possible."""
_MULTIPLES = ((1, 1.5), (2, 1.25), (4, 1.1), (8, 1.04), (16, 1.01), (32, 1.0))
"""(multiple, how many times slower tiles of it are, about): what an axis of a plain product may be padded to.  Chosen
by hand: no benchmark compares others."""
_COOPERATIVE = "meta_schedule.cooperative_fetch"
_THREADS = ("meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive")
"""Notes of the fewest and the most threads of a block, which MetaSchedule's VerifyGPUCode looks at."""
_WARP, _MOST_THREADS = 32, 1024


def thread_tiles(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """Schedules, new ones, with the block tiled for threads; empty where the block is no contraction, or stands among
    blocks that sum up as well."""
    prepared = _prepared(schedule, block)
    if prepared is None:
        return []
    contraction, epilogue, copies = prepared
    name = str(schedule.get(block).name_hint)
    found = []
    for stages in _STAGES:
        new = schedule.copy()
        own = [new.get_sblock(str(schedule.get(copy).name_hint)) for copy in copies]
        last = None if epilogue is None else new.get_sblock(str(schedule.get(epilogue).name_hint))
        if _tile(new, new.get_sblock(name), contraction, last, own, stages):
            found.append(new)
    return found


def _prepared(schedule: Schedule, block: BlockRef) -> tuple[Contraction, Any | None, tuple[Any, ...]] | None:
    """The contraction, padded, with its surroundings inlined: the last block after it, and what computes operands."""
    if read_contraction(schedule, block) is None:
        return None
    without_groups(schedule, block)
    contraction = read_contraction(schedule, block)
    if contraction is None or max(axis.extent for axis in contraction.reduction) == 1:
        return None
    contraction = _padded(schedule, block, contraction)
    around = settle_surroundings(schedule, block)
    return None if around is None else (contraction, around.epilogue, around.copies)


def _padded(schedule: Schedule, block: BlockRef, contraction: Contraction) -> Contraction:
    """The contraction after its axes were padded, where that helps."""
    if not is_plain(contraction):
        return contraction
    wanted = [_multiple(axis.extent) for axis in contraction.axes]
    if max(wanted) == 1:
        return contraction
    try:
        schedule.pad_einsum(block, wanted)
    except tvmlib.TVM_ERRORS as error:
        if not tvmlib.refusal(error):
            raise
        return contraction
    return read_contraction(schedule, block) or contraction


def _multiple(extent: int) -> int:
    """What an axis should be a multiple of; 1 where it is fine as it is."""
    if extent < _LANES:
        return 1

    def time(multiple: int) -> float:
        padded = -(-extent // multiple) * multiple
        return padded * next(slower for by, slower in reversed(_MULTIPLES) if padded % by == 0)

    best = min((by for by, _ in _MULTIPLES), key=time)
    return best if extent % best else 1


@dataclass(slots=True)
class _Loops:
    """The loops that a tile is made of, outermost first at every level."""

    blocks: list[Any] = field(default_factory=list)
    virtual: list[Any] = field(default_factory=list)
    threads: list[Any] = field(default_factory=list)
    outer: list[Any] = field(default_factory=list)
    inner: list[Any] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)


def _tile(
    schedule: Schedule,
    block: BlockRef,
    contraction: Contraction,
    epilogue: Any | None,
    copies: Sequence[Any],
    stages: int,
) -> bool:
    """Tile the block; whether there are so many steps of the reduction that stages may overlap."""
    last = epilogue
    if last is None:
        last = schedule.cache_write(block, 0, "local")
    else:
        schedule.set_scope(block, 0, "local")
    main = _main_axes(contraction)
    fetches = [_shared(schedule, block, operand, main) for operand in contraction.operands]
    for copy in copies:
        schedule.compute_inline(copy)
    loops = _split(schedule, block, contraction, main)
    schedule.reorder(*loops.blocks, *loops.virtual, *loops.threads, *loops.outer, *loops.inner, *loops.own)
    grid, group = schedule.fuse(*loops.blocks), schedule.fuse(*loops.threads)
    schedule.bind(grid, "blockIdx.x")
    if loops.virtual:
        schedule.bind(schedule.fuse(*loops.virtual), "vthread.x")
    schedule.bind(group, "threadIdx.x")
    if _most_threads(contraction, main) >= 2 * _WARP:
        for note, limit in zip(_THREADS, (_WARP, _MOST_THREADS), strict=True):  # TVM heeds both or neither
            schedule.annotate(block, note, limit)
    sliding = any(slides(contraction, axis) for axis in contraction.reduction if axis.extent > 1)
    most = _MOST_SLIDING if sliding else _MOST_ACCUMULATORS
    note_thread_bounds(schedule, block, ThreadBounds(most, _REGISTERS, _CODE // stages))
    schedule.reverse_compute_at(last, group, preserve_unit_loops=True)
    home = loops.outer[-1] if loops.outer else group
    if stages > 1:
        steps = [a.extent for a in contraction.reduction if not slides(contraction, a)]
        if math.prod(steps) < _LANES * stages:
            return False
        home = schedule.fuse(*loops.outer)
        _overlap(schedule, home, stages)
    for fetch, operand in zip(fetches, contraction.operands, strict=True):
        schedule.compute_at(fetch, home, preserve_unit_loops=True)
        schedule.fuse(*schedule.get_loops(fetch)[-len(operand.indices) :])
        vector = schedule.sample_categorical(
            [_vector(contraction, operand, main, stages)], [1.0]
        )  # TVM wants to decide
        schedule.annotate(fetch, _COOPERATIVE, vector)
    for loop in (*loops.inner, *loops.own):
        schedule.unroll(loop)
    schedule.annotate(loops.inner[0], "pragma_unroll_explicit", 0)
    return True


def _overlap(schedule: Schedule, loop: LoopRef, stages: int) -> None:
    """Let both copies of a step begin so many steps before what is computed from them."""
    schedule.annotate(loop, "software_pipeline_stage", [0, 0, stages - 1])
    schedule.annotate(loop, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(loop, "software_pipeline_async_stages", [0])
    Asynchronous().put(schedule, loop)


def _vector(contraction: Contraction, operand: Operand, main: Sequence[Axis | None], stages: int) -> int:
    """Elements of an operand that a thread copies at once: those that are neighbours in memory, and in every tile.
    Asynchronous copies write them as neighbours, too."""
    if stages > 1 and _turned(operand, main) is not None:
        return 1
    alone = (axis for axis in contraction.axes if operand.indices[-1].same_as(axis.variable))
    axis = next(alone, None)
    return _lanes(axis) if axis is not None and _in_lanes(contraction, axis, main) else 1


def _in_lanes(contraction: Contraction, axis: Axis, main: Sequence[Axis | None]) -> bool:
    """Whether the tiles of an axis are made of vectors."""
    return any(axis is one for one in main) or (axis.reduced and not slides(contraction, axis))


def _main_axes(contraction: Contraction) -> tuple[Axis | None, ...]:
    """For each operand the axis along which neighbouring outputs of a thread lie: one that it has and the other has
    not, the one that the output is contiguous along, or its longest."""
    found: list[Axis | None] = []
    for own, other in (contraction.operands, contraction.operands[::-1]):
        alone = [a for a in contraction.spatial if a.extent > 1 and a.place in own.axes and a.place not in other.axes]
        contiguous = [a for a in alone if a.place == contraction.written[-1]]
        found.append(contiguous[0] if contiguous else max(alone, key=lambda a: a.extent, default=None))
    return tuple(found)


def _most_threads(contraction: Contraction, main: Sequence[Axis | None]) -> int:
    """Threads of a block that computes the whole output."""
    return math.prod(
        axis.extent // (_lanes(axis) if any(axis is one for one in main) else 1) for axis in contraction.spatial
    )


def _lanes(axis: Axis) -> int:
    """Neighbouring outputs of a thread along an axis, for sure."""
    return next(width for width in (_LANES, 2, 1) if axis.extent % width == 0)


def _shared(schedule: Schedule, block: BlockRef, operand: Operand, main: Sequence[Axis | None]) -> Any:
    """The block that copies an operand into shared memory, its main axis last."""
    fetch = schedule.cache_read(block, operand.read, "shared")
    turned = _turned(operand, main)
    if turned is not None:
        axis, place = turned
        schedule.transform_layout(fetch, ("write", 0), _moved_last(place))
        if _lanes(axis) == _LANES:
            schedule.storage_align(fetch, 0, len(operand.indices) - 2, 2 * _LANES, _LANES)
    return fetch


def _turned(operand: Operand, main: Sequence[Axis | None]) -> tuple[Axis, int] | None:
    """The main axis that an operand has in another dimension than its last, and which that is."""
    axis = next((a for a in main if a is not None and a.place in operand.axes), None)
    if axis is None:
        return None
    places = [i for i, index in enumerate(operand.indices) if tvmlib.uses(index, axis.variable)]
    return (axis, places[0]) if len(places) == 1 and places[0] != len(operand.indices) - 1 else None


def _moved_last(place: int) -> Callable[..., list[Any]]:
    return lambda *indices: [*indices[:place], *indices[place + 1 :], indices[place]]


def _split(schedule: Schedule, block: BlockRef, contraction: Contraction, main: Sequence[Axis | None]) -> _Loops:
    """Every axis split, by sampled factors, into the loops of a tile."""
    found = _Loops()
    loops = schedule.get_loops(block)
    last = contraction.written[-1]
    for axis in sorted(contraction.spatial, key=lambda a: a.place == last):  # neighbouring threads go along it
        loop = loops[axis.place]
        lanes = _lanes(axis)
        alone = sum(axis.place in operand.axes for operand in contraction.operands) == 1
        if axis.extent == 1:
            found.blocks.append(loop)
        elif any(axis is one for one in main) and lanes > 1:
            vectors, lane = schedule.split(loop, [None, lanes], disable_predication=True)
            outer, virtual, thread = _factors(schedule, vectors, 3, 64)
            found.blocks.append(outer)
            found.virtual.append(virtual)
            found.threads.append(thread)
            found.own.append(lane)
        elif alone:
            outer, thread, own = _factors(schedule, loop, 3, _MOST_OWN)
            found.blocks.append(outer)
            found.threads.append(thread)
            found.own.append(own)
        else:
            outer, thread = _factors(schedule, loop, 2, 64)
            found.blocks.append(outer)
            found.threads.append(thread)
    for axis in contraction.reduction:
        loop = loops[axis.place]
        if axis.extent == 1 or slides(contraction, axis):
            found.inner.append(loop)
            continue
        contiguous = any(operand.indices[-1].same_as(axis.variable) for operand in contraction.operands)
        lanes = _lanes(axis) if contiguous else 1
        if lanes > 1:
            loop, lane = schedule.split(loop, [None, lanes], disable_predication=True)
        outer, inner = _factors(schedule, loop, 2, _MOST_STEPS // lanes)
        found.outer.append(outer)
        found.inner += [inner, lane] if lanes > 1 else [inner]
    return found


def _factors(schedule: Schedule, loop: LoopRef, parts: int, most: int) -> list[Any]:
    """The loop split into sampled factors, the innermost of at most `most`."""
    factors = schedule.sample_perfect_tile(loop, n=parts, max_innermost_factor=most)
    return list(schedule.split(loop, factors))
