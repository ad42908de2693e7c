"""Schedule contractions on CPUs with a tile of the output in vector registers.

    for n, k, h, w:                         parallel for n, h_0, k_0:
        for c, r, s:                            P = the padded input that these rows need
            Y[n, k, h, w] += P[…] · W[…]        for k_1, h_1, w_0:
                                                    unroll w_1, k_2: vector k_3: Y[…] = 0
                                     →              for c, r, s:
                                                        unroll w_1, k_2: vector k_3:
                                                            Y[…] += P[…] · W[…]
                                                    unroll w_1, k_2: vector k_3: Z[…] = relu(Y[…] + b[k])

The reduction is not split: the tile is neither stored nor loaded in between, and its epilogue reads it from registers.
(Splitting it into blocks, so that weights stay in the L1 cache, was measured to be no faster, and up to a third slower
for short reductions.) Long reductions are split, outside w_0, where an operand is copied into panels, since panels that
fill the L2 cache are slow as soon as other code uses the cache, and where the vectors of a constant that a row of tiles
shares fill half of that cache: every tile would load them from farther away. On two cores of Ice Lake, whose L2 caches
have 1.25 MiB, 100×11008×4096 takes 0.57 of the time, 100×4096×11008 0.8, 197×3072×768 0.91, and 100×2048×5632, which
stays whole, would take as long. No benchmark repeats that.

`k` is the vector axis. It is contiguous in every operand that has it, or can be made so: constants are packed at
compile time (MetaSchedule's RewriteLayout), other operands are copied into panels. `w` is the rows axis, which the
vectorized operand does not have. Every loaded vector serves all rows of the tile, and every broadcast element of the
other operand serves all vectors of a row. Only the vector unit limits the arithmetic.

With `bfloat16_pairs.py`, the innermost loop is over two steps of the reduction, `c` above. An instruction computes both
for a vector, on operands that copies and packing have rounded to bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Schedule, TirExpr
from felixlike.codegen.annotations import Blocks, Guard, Matrix, Prefetch, Skip, Transpose
from felixlike.codegen.matrix_functions import REGISTERS
from felixlike.codegen.padding import padded
from felixlike.hardware import BFLOAT16, Device, Form
from felixlike.hardware.vectors import TILE, widths
from felixlike.spaces.blocks import copy_operand, costs, in_step, realize_of, sampled
from felixlike.spaces.contraction import (
    Axis,
    Contraction,
    Operand,
    read_contraction,
    slides,
    without_groups,
    without_points,
)
from felixlike.spaces.cpu import bfloat16_pairs, narrow_weights
from felixlike.spaces.cpu.matrix_tiles import MOST, MatrixTile, matrix_tile
from felixlike.spaces.cpu.register_bounds import Extents, note_bounds, reachable_bounds
from felixlike.spaces.padding import is_plain, multiples, pack_when_compiled
from felixlike.spaces.roles import SHARED_VECTORS, Roles, choose_roles, shared_bytes
from felixlike.spaces.surroundings import Surroundings, settle_surroundings

_LONGEST_BLOCK = 128
"""Steps of a block of the reduction, or down to a quarter of that. An accumulator is then stored and loaded once in 128
(32) products, and a panel of `TILE.vectors` vectors of 64 bytes has 64 KiB, a small part of any L2 cache. Longer blocks
were measured to be slower as soon as other code uses the cache. No benchmark repeats that."""

_LONGEST_BLOCK_OF_MATRICES = 48
"""Steps of a block of the reduction in matrices of 16 pairs. Chosen by hand: no benchmark compares others."""


def register_tiles(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """Return the schedule, changed, with the block tiled for registers, or [] if the rule does not apply.

    It does not apply if the block is no contraction, has no axis suitable for vectors, or is among other reductions.
    Where products may be rounded, a second schedule multiplies pairs of bfloat16 numbers, or keeps weights in bfloat16,
    if that is estimated to be faster. Factors that are bfloat16 are multiplied in pairs where the device can.
    """
    if device.multiplies_halves and bfloat16_pairs.are_given(schedule, block):
        exact = schedule.copy()
        if _tiled(exact, exact.get_sblock(str(schedule.get(block).name_hint)), device, pairs=True) is not None:
            return [exact]
    may_round = narrow_weights.may_round(schedule, block, device)
    second, name = schedule.copy() if may_round else None, str(schedule.get(block).name_hint)
    tiled = _tiled(schedule, block, device)
    if tiled is None:
        return []
    form = narrow_weights.faster_form(schedule, block, *tiled, device) if second is not None else None
    if second is None or form is None:
        return [schedule]
    rounded, pairs = second.get_sblock(name), form is Form.PAIRS
    if _tiled(second, rounded, device, pairs=pairs) is None:
        return [schedule]
    if not pairs:
        narrow_weights.mark(second, rounded)
    return [schedule, second]


def _tiled(
    schedule: Schedule, block: BlockRef, device: Device, *, pairs: bool = False
) -> tuple[Contraction, Roles] | None:
    """Tile a block and return its contraction and roles, or None if the rule does not apply."""
    if read_contraction(schedule, block) is None:
        return None
    without_groups(schedule, block)
    contraction = read_contraction(schedule, block)
    if contraction is None:
        return None
    contraction = _padded(schedule, block, contraction, device, pairs=pairs)
    roles = choose_roles(contraction, device)
    if roles is not None and pairs:
        roles = bfloat16_pairs.roles_in_pairs(contraction, roles)
    if roles is None:
        return None
    matrix = matrix_tile(contraction, roles, device) if pairs else None
    adjacent = settle_surroundings(schedule, block, stored=pairs)
    if adjacent is None:
        return None
    adjacent = _packed(schedule, block, contraction, roles, adjacent, pairs=pairs)
    _tile(schedule, block, contraction, roles, adjacent, device, pairs=pairs, matrix=matrix)
    return contraction, roles


def _padded(
    schedule: Schedule, block: BlockRef, contraction: Contraction, device: Device, *, pairs: bool
) -> Contraction:
    """Pad the axes of a contraction where that helps, and return the contraction."""
    roles = choose_roles(contraction, device, padded=True) if is_plain(contraction) else None
    if roles is None:
        return contraction
    padding = multiples(contraction, roles.vector, roles.rows, roles.lanes, device.unit.registers)
    if pairs and roles.summed is not None and roles.summed.extent % bfloat16_pairs.PAIR:
        padding[roles.summed.place] = bfloat16_pairs.PAIR
    in_pairs = bfloat16_pairs.roles_in_pairs(contraction, roles, padded=True) if pairs else None
    matrix = None if in_pairs is None else matrix_tile(contraction, in_pairs, device, padded=True)
    if matrix is not None and roles.rows is not None and in_pairs is not None and in_pairs.summed is not None:
        padding[roles.rows.place] = matrix.padded_rows
        padding[in_pairs.summed.place] = matrix.padded_steps
    if max(padding) == 1:
        return contraction
    without_points(schedule, block)
    if len(schedule.get_loops(block)) < len(contraction.axes):
        pointless = read_contraction(schedule, block)
        return contraction if pointless is None else _padded(schedule, block, pointless, device, pairs=pairs)
    try:
        schedule.pad_einsum(block, padding)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return contraction  # a window of one tap is a plain index here, but not in TVM
    padded_contraction = read_contraction(schedule, block)
    if padded_contraction is None:
        return contraction
    wider = roles.vector.place if padding[roles.vector.place] > 1 else None
    first, second = (
        replace(new, constant=old.constant, copied=wider in old.axes and not old.constant)
        for new, old in zip(padded_contraction.operands, contraction.operands, strict=True)
    )
    return replace(padded_contraction, operands=(first, second))


def _packed(
    schedule: Schedule,
    block: BlockRef,
    contraction: Contraction,
    roles: Roles,
    adjacent: Surroundings,
    *,
    pairs: bool,
) -> Surroundings:
    """Annotate the block that pads the vectorized constant as one that runs once, and remove it from the copies."""
    for copy in adjacent.copies:
        operand = _operand_of(schedule, block, contraction, copy)
        if operand is not None and operand.constant and roles.vector.place in operand.axes:
            moved, paired = (
                next(i for i, e in enumerate(operand.indices) if axis is not None and e.same_as(axis.variable))
                for axis in (roles.vector, roles.summed if pairs else roles.vector)
            )
            pack_when_compiled(schedule, copy, moved, roles.lanes, paired if pairs else None)
            return Surroundings(tuple(c for c in adjacent.copies if c is not copy), adjacent.epilogue)
    return adjacent


def _tile(
    schedule: Schedule,
    block: BlockRef,
    contraction: Contraction,
    roles: Roles,
    adjacent: Surroundings,
    device: Device,
    *,
    pairs: bool,
    matrix: MatrixTile | None,
) -> None:
    """Apply the tile's primitives to a contraction."""
    last = adjacent.epilogue if adjacent.epilogue is not None else schedule.cache_write(block, 0, "global")
    if contraction.written[-1] != roles.vector.place:
        schedule.transform_layout(block, ("write", 0), moved_last(contraction.written.index(roles.vector.place)))
    panel, lane_place, pair_place, copies = None, 1, None, adjacent.copies
    if roles.panel is not None:
        source = schedule.get(block).reads[roles.panel.read].source
        panel = copy_operand(schedule, block, roles.panel.read, "global", last)
        for copy in copies:
            if schedule.get(copy).writes[0].source.same_as(source):
                schedule.compute_inline(copy)  # padding is done during the copy into panels
                copies = tuple(c for c in copies if c is not copy)
        places = [
            next((a.place for a in contraction.axes if _tvm.uses(i, a.variable)), None) for i in roles.panel.indices
        ]
        moved = places.index(roles.vector.place)
        if pairs or not roles.panel.contiguous(roles.vector):
            lane_place = len(places) - moved
        both = bfloat16_pairs.paired(roles.panel, roles) if pairs else None
        if both is not None:
            pair_place = len(places) - both
            schedule.transform_layout(panel, ("write", 0), bfloat16_pairs.in_pairs(moved, both))
        elif not roles.panel.contiguous(roles.vector):
            schedule.transform_layout(panel, ("write", 0), moved_last(moved))
    padding = [] if matrix is not None else _padding_of_rows(schedule, block, contraction, roles, copies)
    for copy in (inlined := [*padding, *_padding_of_channels(schedule, block, contraction, roles, copies)]):
        schedule.compute_inline(copy)
    copies = tuple(c for c in copies if not any(c is copy for copy in inlined))
    rounded: list[Any] = []
    operand = bfloat16_pairs.broadcast(contraction, roles) if pairs else None
    if operand is not None and not operand.constant and not _is_stored(schedule, block, operand):
        rounded.append(_copy_to_round(schedule, block, operand, copies, last))
        copies = tuple(c for c in copies if c is not rounded[0])

    loops = schedule.get_loops(block)
    vectors, lane = schedule.split(loops[roles.vector.place], [None, roles.lanes])
    in_lines = matrix is not None and matrix.lines  # one row of matrices has all rows
    extents = _extents(contraction, roles, matrix)
    step = bfloat16_pairs.PAIR * (1 if matrix is None else matrix.words) if pairs else 1
    length = 0 if roles.summed is None else roles.summed.extent // step
    far = _outgrows_cache(contraction, roles, device, matrix)
    longest = _LONGEST_BLOCK if matrix is None else _LONGEST_BLOCK_OF_MATRICES
    steps = _steps_of_block(length, longest) if panel is not None or far else 0
    v_parallel, v_outer, v_tile = sampled(schedule, vectors, 3, extents.most_vectors)
    sliding = roles.window is not None and slides(contraction, roles.window)
    one_panel = panel is not None or (steps > 0 and _rows_fit(contraction, roles, steps, device))
    shared_rows = sliding or (one_panel and _enough_without_rows(extents, device))
    within_matrix: list[Any] = []
    if roles.rows is None:
        rows = []
    elif matrix is None:
        rows = sampled(schedule, loops[roles.rows.place], 3 - shared_rows, TILE.rows)
    else:
        *matrices, row = schedule.split(
            loops[roles.rows.place], [None, matrix.rows][roles.rows.extent == matrix.rows :]
        )
        rows = sampled(schedule, matrices[0], 3 - shared_rows, extents.most_rows) if matrices else []
        within_matrix.append(row)
    window = []
    if roles.window is not None:
        parts, most = (3, MOST) if in_lines else (2, roles.window.extent)
        window = sampled(schedule, loops[roles.window.place], parts, most)
    taken = (roles.vector, roles.rows, roles.window)
    batch = [loops[a.place] for a in contraction.spatial if a not in taken]
    taps = taps_of(contraction, roles)
    outer_taps, inner_tap = [loops[a.place] for a in taps[:-1]], [loops[a.place] for a in taps[-1:]]
    summed = [] if roles.summed is None else [loops[roles.summed.place]]
    pair = []
    if pairs:
        *summed, both = schedule.split(summed[0], [None, bfloat16_pairs.PAIR])
        pair.append(both)
    if matrix is not None:
        *summed, words = schedule.split(summed[0], [None, matrix.words])
        within_matrix.append(words)
    parallel = [*batch, *window[:1], *rows[:-2], v_parallel]
    tile_rows = window[2:] if in_lines else rows[-1:]
    tile = [*tile_rows, v_tile, *within_matrix, lane]
    within = [*window[1:2], *rows[-2:-1]]
    blocks: list[Any] = []
    if steps:
        block_loop, *summed = schedule.split(summed[0], [None, steps])
        blocks.append(block_loop)
    around = blocks if matrix is not None and far else []  # several panels share the rows of a block
    nest = [*around, v_outer] if around else [v_outer, *blocks]
    schedule.reorder(*parallel, *nest, *within, *outer_taps, *summed, *inner_tap, *tile, *pair)
    shared = schedule.fuse(*parallel)
    home = [] if blocks else within
    place = shared if around else [v_outer, *home][-1]
    schedule.reverse_compute_at(last, place, preserve_unit_loops=True)
    if panel is not None:
        schedule.compute_at(panel, blocks[0] if blocks else v_outer, preserve_unit_loops=True)
    if padding:
        Guard().put(schedule, (*outer_taps, *summed, *inner_tap)[0])
    for copy in (*copies, *rounded):
        schedule.compute_at(copy, shared, preserve_unit_loops=True)
    schedule.parallel(shared)
    schedule.vectorize(lane)
    for loop in (*tile_rows, v_tile):
        schedule.unroll(loop)
    unrolled = matrix is None and bool(taps) and 1 < taps[-1].extent <= TILE.unrolled_taps
    if unrolled:
        schedule.unroll(inner_tap[0])
    for loop in blocks if matrix is None else ():  # an instruction loads and stores the sums of matrices
        Blocks().put(schedule, loop)
    for tap, axis in zip(outer_taps, taps[:-1], strict=True):
        if axis.extent > 1:
            Skip().put(schedule, tap)
    if matrix is not None:
        Matrix().put(schedule, within_matrix[0])
    if summed and any(o.constant and roles.vector.place in o.axes for o in contraction.operands):
        Prefetch().put(schedule, summed[0])
    registers = device.unit.registers if matrix is None else REGISTERS
    bounds = reachable_bounds(extents, registers=registers, unrolled=unrolled, cores=device.cores)
    note_bounds(schedule, block, bounds)
    for loop in pair:
        bfloat16_pairs.mark(schedule, loop)
    for copy in rounded:
        length = int(schedule.get(schedule.get_loops(copy)[-1]).extent)
        vectorize(schedule, copy, 1, next(w for w in (*widths(roles.lanes), 1) if length % w == 0))
    if panel is not None:
        vectorize(schedule, panel, lane_place, roles.lanes, pair_place)
    if contraction.written[-1] == roles.vector.place and in_step(schedule, last, block):
        vectorize(schedule, last, 1, roles.lanes)
        for loop in schedule.get_loops(last)[2 + len(home) : -1] if home and matrix is None else []:
            schedule.unroll(loop)
    elif contraction.written[-1] != roles.vector.place:
        _mark_transposed(schedule, last, block, roles.lanes)


def _is_stored(schedule: Schedule, block: BlockRef, operand: Operand) -> bool:
    """Return whether an operand is a bfloat16 parameter of the function, which can be read in place."""
    source = schedule.get(block).reads[operand.read].source
    return str(source.dtype) == BFLOAT16.name and any(source.same_as(p) for p in schedule.mod["main"].params)


def _copy_to_round(schedule: Schedule, block: BlockRef, operand: Operand, copies: Sequence[Any], last: BlockRef) -> Any:
    """Return the block that copies an operand: one of `copies` that nothing else reads, or a new one."""
    source = schedule.get(block).reads[operand.read].source
    for copy in copies:
        if schedule.get(copy).writes[0].source.same_as(source) and len(schedule.get_consumers(copy)) == 1:
            return copy
    return copy_operand(schedule, block, operand.read, "global", last)


def taps_of(contraction: Contraction, roles: Roles) -> list[Axis]:
    """Return the axes of windows: those of one step first, the one that slides along the rows last, to be unrolled."""
    rows = [] if roles.rows is None else [roles.rows.variable]
    indices = [i for o in contraction.operands for i in o.indices if any(_tvm.uses(i, row) for row in rows)]

    def rank(tap: Axis) -> tuple[bool, bool]:
        return any(_tvm.uses(i, tap.variable) for i in indices), tap.extent > 1

    # Elements that a row loads at one step of the last one stay in registers for its neighbour at the next.
    return sorted((a for a in contraction.reduction if a is not roles.summed), key=rank)


def _padding_of_rows(
    schedule: Schedule, block: BlockRef, contraction: Contraction, roles: Roles, copies: Sequence[Any]
) -> list[Any]:
    """Return the copies, one at most, that only add rows of zeros and need not be made."""
    if roles.rows is None or not is_plain(contraction):
        return []
    removable = []
    for copy in copies:
        statement, operand = schedule.get(copy), _operand_of(schedule, block, contraction, copy)
        if operand is not None and roles.vector.place not in operand.axes:
            pairs = zip(statement.iter_vars, operand.indices, strict=True)
            rows = [i.var for i, index in pairs if index.same_as(roles.rows.variable)]
            removable += [copy] if _adds_zeros(statement.body.value, rows) else []
    return removable


def _padding_of_channels(
    schedule: Schedule, block: BlockRef, contraction: Contraction, roles: Roles, copies: Sequence[Any]
) -> list[Any]:
    """Return the copies that pad images of which each channel is reduced by itself, with channels in vectors.

    Each of their elements is loaded as often as there are taps in its row or column, once for neighbours in a tile, so
    that the copy takes longer than the tests at the borders, which are the same for all lanes.
    """
    if roles.summed is not None:
        return []
    removable = []
    for copy in copies:
        statement, operand = schedule.get(copy), _operand_of(schedule, block, contraction, copy)
        if operand is not None and roles.vector.place in operand.axes:
            pairs = zip(statement.iter_vars, operand.indices, strict=True)
            lanes = [i.var for i, index in pairs if _tvm.uses(index, roles.vector.variable)]
            removable += [copy] if _adds_borders(statement.body.value, lanes) else []
    return removable


def _operand_of(schedule: Schedule, block: BlockRef, contraction: Contraction, copy: Any) -> Operand | None:
    """Return the operand that a copy computes."""
    written, reads = schedule.get(copy).writes[0].source, schedule.get(block).reads
    return next((o for o in contraction.operands if reads[o.read].source.same_as(written)), None)


def _adds_zeros(value: TirExpr, rows: list[Any]) -> bool:
    """Return whether a value is an element if a row exists, else zero."""
    guarded = padded(value)
    if guarded is None:
        return False
    test, element = guarded
    bounded = isinstance(test, _tvm.tirx.LT) and any(test.a.same_as(row) for row in rows)
    return bounded and isinstance(element, _tvm.ir.TensorLoad)


def _adds_borders(value: TirExpr, lanes: list[Any]) -> bool:
    """Return whether a value is an element, which may be converted, if a test holds for all lanes, else zero."""
    guarded = padded(value)
    if guarded is None:
        return False
    test, element = guarded
    element = element.value if isinstance(element, _tvm.tirx.Cast) else element
    return isinstance(element, _tvm.ir.TensorLoad) and not any(_tvm.uses(test, lane) for lane in lanes)


def _steps_of_block(extent: int, longest: int) -> int:
    """Return the steps of a block, 0 if the reduction is not split: it is short, or has no long enough divisor."""
    if extent <= longest:
        return 0
    return max((d for d in range(longest // 4, longest + 1) if extent % d == 0), default=0)


def _outgrows_cache(contraction: Contraction, roles: Roles, device: Device, matrix: MatrixTile | None) -> bool:
    """Return whether several tiles share vectors of a constant that do not stay in the L2 cache in between.

    With matrices, the rows of all of them must stay there, too.
    """
    if roles.rows is None or roles.rows.extent <= TILE.rows or len(contraction.reduction) != 1:
        return False
    shared = [operand for operand in contraction.operands if roles.vector.place in operand.axes]
    if len(shared) != 1 or not shared[0].constant:
        return False
    if matrix is None:
        return shared_bytes(contraction, roles.lanes) > device.tile_bytes
    columns = MOST * roles.lanes + roles.rows.extent
    return contraction.reduction[0].extent * columns * narrow_weights.ITEM_BYTES > device.tile_bytes


def _rows_fit(contraction: Contraction, roles: Roles, steps: int, device: Device) -> bool:
    """Return whether the sums of all rows and the elements of a block that they read stay in the L2 cache."""
    rows = 1 if roles.rows is None else roles.rows.extent
    row = SHARED_VECTORS * roles.lanes + steps
    return rows * row * contraction.item_bits // 8 <= device.tile_bytes


def _enough_without_rows(extents: Extents, device: Device) -> bool:
    """Return whether there are enough parallel iterations if all rows share one panel."""
    return extents.others * extents.vectors >= 2 * TILE.vectors * device.cores


def _extents(contraction: Contraction, roles: Roles, matrix: MatrixTile | None) -> Extents:
    """Return the extents that the tile is cut from, in vectors and rows, or in matrices."""
    rows = 1 if roles.rows is None else roles.rows.extent
    spatial = math.prod(axis.extent for axis in contraction.spatial)
    if matrix is not None:
        matrices, others = rows // matrix.rows, spatial // (roles.vector.extent * rows)
        if matrix.lines and roles.window is not None:
            matrices, others = roles.window.extent, others // roles.window.extent
        return Extents(roles.vector.extent // roles.lanes, MOST, matrices, MOST, others)
    return Extents(
        vectors=roles.vector.extent // roles.lanes,
        most_vectors=TILE.vectors if roles.rows is not None else 2 * TILE.vectors,  # longer contiguous accesses
        rows=rows,
        most_rows=TILE.rows,
        others=spatial // (roles.vector.extent * rows),
    )


def moved_last(moved: int) -> Callable[..., list[Any]]:
    """Return the map of a buffer's indices that moves a dimension last."""
    return lambda *indices: [*indices[:moved], *indices[moved + 1 :], indices[moved]]


def _mark_transposed(schedule: Schedule, last: BlockRef, tile: BlockRef, lanes: int) -> None:
    """Annotate the loop over the vectors' elements in a write-back whose vectors lie across the output."""
    statement, source = schedule.get(last), schedule.get(tile).writes[0].source
    loops = schedule.get_loops(last)[-len(statement.iter_vars) :]
    read = next(r for r in statement.reads if r.source.same_as(source))
    across = next((i for i, v in enumerate(statement.iter_vars) if read.region[-1].min.same_as(v.var)), None)
    if across is not None:
        Transpose(lanes).put(schedule, loops[across])


def vectorize(schedule: Schedule, block: BlockRef, place: int, lanes: int, paired: int | None = None) -> None:
    """Split vectors off the `place`-th loop of a block, counted from the innermost, and vectorize them.

    Pairs are split off the `paired`-th loop, if any.
    """
    loops, pair = list(schedule.get_loops(block)), []
    if paired is not None:
        loops[-paired], both = schedule.split(loops[-paired], [None, bfloat16_pairs.PAIR])
        bfloat16_pairs.mark(schedule, both)
        pair.append(both)
    outer, lane = schedule.split(loops[-place], [None, lanes])
    if place > 1 or pair:
        schedule.reorder(outer, *loops[len(loops) + 1 - place :], lane, *pair)
    schedule.vectorize(lane)
    realize: Any = realize_of(schedule, block)
    if costs(schedule, block) or not isinstance(realize.predicate, _tvm.tirx.IntImm):
        Guard().put(schedule, lane)
