"""Register tile: a contraction whose innermost loops keep a tile of the output in vector registers.

    for n, k, h, w:                         parallel for n, h_0, k_0:
        for c, r, s:                            P = the padded input that these rows need
            Y[n, k, h, w] += P[…] · W[…]        for k_1, h_1, w_0:
                                                    unroll w_1, k_2: vector k_3: Y[…] = 0
                                     →              for c, r, s:
                                                        unroll w_1, k_2: vector k_3:
                                                            Y[…] += P[…] · W[…]
                                                    unroll w_1, k_2: vector k_3: Z[…] = relu(Y[…] + b[k])

The reduction is done whole: a tile is neither stored nor loaded in between, and its epilogue finds it in registers.
(In blocks, so that weights stay in the L1 cache, it was measured to be no faster and, where it is short, up to a third
slower.) Only where an operand is copied into panels, long reductions are done in blocks, outside w_0: panels that fill
the L2 cache are slow as soon as others use it, too.

`k` stands for the vector axis: one that lies in memory one element after the other in whatever operand has it, or can
be made to: constants are packed at compile time (MetaSchedule's RewriteLayout), others copied into panels.
`w` is the rows axis, which the operand in vectors has not: every vector that is loaded serves all rows of the tile,
every element of the other operand, broadcast, a row's vectors. So the arithmetic is bound by the vector unit alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, LoopRef, Schedule, TirExpr
from felixlike.codegen.annotations import Blocks, Guard, Prefetch, Skip, Transpose
from felixlike.codegen.padding import padded
from felixlike.hardware import Device
from felixlike.hardware.vectors import MOST_ROWS, MOST_VECTORS, UNROLLED_TAPS
from felixlike.spaces.blocks import costs, in_step, realize_of
from felixlike.spaces.contraction import Axis, Contraction, read_contraction, without_groups, without_points
from felixlike.spaces.cpu.register_bounds import Extents, note_bounds, reachable_bounds
from felixlike.spaces.padding import is_plain, multiples, pack_when_compiled
from felixlike.spaces.roles import Roles, choose_roles, slides
from felixlike.spaces.surroundings import Surroundings, settle_surroundings

_LONGEST = 128
"""Steps of a block of the reduction, or down to a quarter of that: an accumulator is then stored and loaded once in 128
(32) products; and a panel of `MOST_VECTORS` vectors of 64 bytes has 64 KiB, a small part of any L2 cache.  Longer
blocks were measured to be slower as soon as others use the cache; no benchmark repeats that."""


def register_tiles(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """The schedule, changed, with the block tiled for registers; empty where the block is no contraction, has no axis
    that is fit for vectors, or stands among blocks that sum up as well."""
    if read_contraction(schedule, block) is None:
        return []
    without_groups(schedule, block)
    contraction = read_contraction(schedule, block)
    if contraction is None:
        return []
    contraction = _padded(schedule, block, contraction, device)
    roles = choose_roles(contraction, device)
    if roles is None:
        return []
    around = settle_surroundings(schedule, block)
    if around is None:
        return []
    around = _packed(schedule, block, contraction, roles, around)
    _tile(schedule, block, contraction, roles, around, device)
    return [schedule]


def _padded(schedule: Schedule, block: BlockRef, contraction: Contraction, device: Device) -> Contraction:
    """The contraction after its axes were padded, where that helps."""
    roles = choose_roles(contraction, device, padded=True) if is_plain(contraction) else None
    if roles is None:
        return contraction
    wanted = multiples(contraction, roles.vector, roles.rows, roles.lanes, device.unit.registers)
    if max(wanted) == 1:
        return contraction
    without_points(schedule, block)
    if len(schedule.get_loops(block)) < len(contraction.axes):
        pointless = read_contraction(schedule, block)
        return contraction if pointless is None else _padded(schedule, block, pointless, device)
    try:
        schedule.pad_einsum(block, wanted)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return contraction  # windows of one tap are plain to us, but not to TVM
    found = read_contraction(schedule, block)
    if found is None:
        return contraction
    wider = roles.vector.place if wanted[roles.vector.place] > 1 else None
    first, second = (
        replace(new, constant=old.constant, copied=wider in old.axes and not old.constant)
        for new, old in zip(found.operands, contraction.operands, strict=True)
    )
    return replace(found, operands=(first, second))


def _packed(
    schedule: Schedule, block: BlockRef, contraction: Contraction, roles: Roles, around: Surroundings
) -> Surroundings:
    """LoopAnnotation the block that pads the constant in vectors as one that is run once."""
    for copy in around.copies:
        written = schedule.get(copy).writes[0].source
        for operand in contraction.operands:
            own = schedule.get(block).reads[operand.read].source.same_as(written)
            if own and operand.constant and roles.vector.place in operand.axes:
                moved = next(i for i, e in enumerate(operand.indices) if e.same_as(roles.vector.variable))
                pack_when_compiled(schedule, copy, moved, roles.lanes)
                return Surroundings(tuple(c for c in around.copies if c is not copy), around.epilogue)
    return around


def _tile(
    schedule: Schedule, block: BlockRef, contraction: Contraction, roles: Roles, around: Surroundings, device: Device
) -> None:
    last = around.epilogue if around.epilogue is not None else schedule.cache_write(block, 0, "global")
    if contraction.written[-1] != roles.vector.place:
        schedule.transform_layout(block, ("write", 0), _moved_last(contraction.written, roles.vector))
    panel, apart, copies = None, 1, around.copies
    if roles.panel is not None:
        source = schedule.get(block).reads[roles.panel.read].source
        panel = schedule.cache_read(block, roles.panel.read, "global")
        for copy in copies:
            if schedule.get(copy).writes[0].source.same_as(source):
                schedule.compute_inline(copy)  # what pads does so on the way into panels
                copies = tuple(c for c in copies if c is not copy)
        if not roles.panel.contiguous(roles.vector):
            places = [
                next((a.place for a in contraction.axes if _tvm.uses(i, a.variable)), None) for i in roles.panel.indices
            ]
            apart = len(places) - places.index(roles.vector.place)
            schedule.transform_layout(panel, ("write", 0), _moved_last(places, roles.vector))
    padding = _padding_of_rows(schedule, block, contraction, roles, copies)
    for copy in padding:
        schedule.compute_inline(copy)
    copies = tuple(c for c in copies if not any(c is copy for copy in padding))

    loops = schedule.get_loops(block)
    vectors, lane = schedule.split(loops[roles.vector.place], [None, roles.lanes])
    extents = _extents(contraction, roles)
    v_parallel, v_outer, v_tile = _factors(schedule, vectors, 3, extents.most_vectors)
    sliding = roles.window is not None and slides(contraction, roles.window)
    shared_rows = sliding or (panel is not None and _enough_without_rows(extents, device))
    rows = [] if roles.rows is None else _factors(schedule, loops[roles.rows.place], 3 - shared_rows, MOST_ROWS)
    window = [] if roles.window is None else _factors(schedule, loops[roles.window.place], 2, roles.window.extent)
    taken = (roles.vector, roles.rows, roles.window)
    batch = [loops[a.place] for a in contraction.spatial if a not in taken]
    taps = _taps(contraction, roles)
    outer_taps, inner_tap = [loops[a.place] for a in taps[:-1]], [loops[a.place] for a in taps[-1:]]
    summed = [] if roles.summed is None else [loops[roles.summed.place]]
    parallel = [*batch, *window[:1], *rows[:-2], v_parallel]
    tile = [*rows[-1:], v_tile, lane]
    within = [*window[1:], *rows[-2:-1]]
    blocks: list[Any] = []
    if panel is not None and roles.summed is not None and (steps := _steps_of_block(roles.summed.extent)):
        block_loop, *summed = schedule.split(summed[0], [None, steps])
        blocks.append(block_loop)
    schedule.reorder(*parallel, v_outer, *blocks, *within, *outer_taps, *summed, *inner_tap, *tile)
    shared = schedule.fuse(*parallel)
    home = [] if blocks else within
    schedule.reverse_compute_at(last, home[-1] if home else v_outer, preserve_unit_loops=True)
    if panel is not None:
        schedule.compute_at(panel, blocks[0] if blocks else v_outer, preserve_unit_loops=True)
    if padding:
        Guard().put(schedule, (*outer_taps, *summed, *inner_tap)[0])
    for copy in copies:
        schedule.compute_at(copy, shared, preserve_unit_loops=True)
    schedule.parallel(shared)
    schedule.vectorize(lane)
    for loop in tile[:-1]:
        schedule.unroll(loop)
    unrolled = bool(taps) and 1 < taps[-1].extent <= UNROLLED_TAPS
    if unrolled:
        schedule.unroll(inner_tap[0])
    for loop in blocks:
        Blocks().put(schedule, loop)
    for tap, axis in zip(outer_taps, taps[:-1], strict=True):
        if axis.extent > 1:
            Skip().put(schedule, tap)
    if summed and any(o.constant and roles.vector.place in o.axes for o in contraction.operands):
        Prefetch().put(schedule, summed[0])
    bounds = reachable_bounds(extents, registers=device.unit.registers, unrolled=unrolled, cores=device.cores)
    note_bounds(schedule, block, bounds)
    if panel is not None:
        _vectorize(schedule, panel, apart, roles.lanes)
    if contraction.written[-1] == roles.vector.place and in_step(schedule, last, block):
        _vectorize(schedule, last, 1, roles.lanes)
        for loop in schedule.get_loops(last)[2 + len(home) : -1] if home else []:
            schedule.unroll(loop)
    elif contraction.written[-1] != roles.vector.place:
        _mark_transposed(schedule, last, block, roles.lanes)


def _taps(contraction: Contraction, roles: Roles) -> list[Axis]:
    """Axes of windows, those of one step first; last, to be unrolled, the one that slides along the rows: what a row
    loads at one step is what its neighbour needs at the next, in registers then."""
    rows = [] if roles.rows is None else [roles.rows.variable]
    indices = [i for o in contraction.operands for i in o.indices if any(_tvm.uses(i, row) for row in rows)]

    def rank(tap: Axis) -> tuple[bool, bool]:
        return any(_tvm.uses(i, tap.variable) for i in indices), tap.extent > 1

    return sorted((a for a in contraction.reduction if a is not roles.summed), key=rank)


def _padding_of_rows(
    schedule: Schedule, block: BlockRef, contraction: Contraction, roles: Roles, copies: Sequence[Any]
) -> list[Any]:
    """The copies, one or none, that do nothing but add rows of zeros, and so need not be made."""
    if roles.rows is None or not is_plain(contraction):
        return []
    read = [schedule.get(block).reads[operand.read].source for operand in contraction.operands]
    found = []
    for copy in copies:
        statement = schedule.get(copy)
        for operand, source in zip(contraction.operands, read, strict=True):
            if statement.writes[0].source.same_as(source) and roles.vector.place not in operand.axes:
                rows = [
                    i.var
                    for i, e in zip(statement.iter_vars, operand.indices, strict=True)
                    if e.same_as(roles.rows.variable)
                ]
                found += [copy] if _adds_zeros(statement.body.value, rows) else []
    return found


def _adds_zeros(value: TirExpr, rows: list[Any]) -> bool:
    """Whether a value is an element where some row exists, else zero."""
    found = padded(value)
    if found is None:
        return False
    test, element = found
    bounded = isinstance(test, _tvm.tirx.LT) and any(test.a.same_as(row) for row in rows)
    return bounded and isinstance(element, _tvm.ir.TensorLoad)


def _steps_of_block(extent: int) -> int:
    """Steps of a block; 0 where the reduction is to be done whole: it is short, or no divisor is long enough."""
    if extent <= _LONGEST:
        return 0
    return max((d for d in range(_LONGEST // 4, _LONGEST + 1) if extent % d == 0), default=0)


def _enough_without_rows(extents: Extents, device: Device) -> bool:
    """Whether there are parallel iterations enough although all rows share one panel."""
    return extents.others * extents.vectors >= 2 * MOST_VECTORS * device.cores


def _factors(schedule: Schedule, loop: LoopRef, parts: int, most: int) -> list[Any]:
    """The loop split into sampled factors, the innermost of at most `most`."""
    factors = schedule.sample_perfect_tile(loop, n=parts, max_innermost_factor=most)
    return list(schedule.split(loop, factors))


def _extents(contraction: Contraction, roles: Roles) -> Extents:
    """What the tile is cut from."""
    rows = 1 if roles.rows is None else roles.rows.extent
    spatial = math.prod(axis.extent for axis in contraction.spatial)
    return Extents(
        vectors=roles.vector.extent // roles.lanes,
        most_vectors=MOST_VECTORS if roles.rows is not None else 2 * MOST_VECTORS,  # longer runs through memory
        rows=rows,
        most_rows=MOST_ROWS,
        others=spatial // (roles.vector.extent * rows),
    )


def _moved_last(places: Sequence[int | None], axis: Axis) -> Callable[..., list[Any]]:
    """The map of a buffer's indices that puts an axis last.  places: the axis of each dimension."""
    moved = places.index(axis.place)
    return lambda *indices: [*indices[:moved], *indices[moved + 1 :], indices[moved]]


def _mark_transposed(schedule: Schedule, last: BlockRef, tile: BlockRef, lanes: int) -> None:
    """Annotate the write-back of a tile whose vectors lie across what is written: the loop over the vectors' elements,
    if none but the rows' is inside it."""
    statement, source = schedule.get(last), schedule.get(tile).writes[0].source
    loops = schedule.get_loops(last)[-len(statement.iter_vars) :]
    read = next(r for r in statement.reads if r.source.same_as(source))
    across = next((i for i, v in enumerate(statement.iter_vars) if read.region[-1].min.same_as(v.var)), None)
    if across is not None:
        Transpose(lanes).put(schedule, loops[across])


def _vectorize(schedule: Schedule, block: BlockRef, place: int, lanes: int) -> None:
    """Split vectors off the `place`-th loop of a block, counted from the innermost, and write whole ones."""
    loops = schedule.get_loops(block)
    outer, lane = schedule.split(loops[-place], [None, lanes])
    if place > 1:
        schedule.reorder(outer, *loops[1 - place :], lane)
    schedule.vectorize(lane)
    realize: Any = realize_of(schedule, block)
    if costs(schedule, block) or not isinstance(realize.predicate, _tvm.tirx.IntImm):
        Guard().put(schedule, lane)
