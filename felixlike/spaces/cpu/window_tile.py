"""Schedule reductions of windows on CPUs, as of pooling, with a tile of the output in vector registers.

    for n, h, w, c:                         parallel for n, h_0:
        for r, s:                               P = the padded input that these lines need, in vectors
            Y[n, h, w, c] =        →            for h_1, w_0, c_0:
                max(Y[…], P[…])                     unroll w_1, c_1: vector c_2: Y[…] = -inf
                                                    for r: unroll s, w_1, c_1: vector c_2: Y[…] = max(Y[…], P[…])
                                                    unroll w_1, c_1: vector c_2: Z[…] = f(Y[…])

MetaSchedule's default space unrolls such windows by up to 512 steps, which takes LLVM seconds. The rule is for windows
that overlap or are padded: others are rows of `rows.py`.
"""

from __future__ import annotations

from typing import Any

from felixlike._tvm.typing import Schedule
from felixlike.hardware import Device
from felixlike.hardware.vectors import TILE
from felixlike.spaces.blocks import blocks_of, in_step, sampled
from felixlike.spaces.contraction import Contraction, read_window
from felixlike.spaces.cpu.register_bounds import Bounds, note_bounds
from felixlike.spaces.cpu.register_tile import taps_of, vectorize
from felixlike.spaces.roles import Roles, choose_roles
from felixlike.spaces.surroundings import Surroundings, settle_surroundings


def window_tiles(schedule: Schedule, device: Device) -> list[Schedule]:
    """Return the schedule, changed, with the windows of its one reduction in tiles, or [] if the rule does not apply.

    It is a rule for whole functions, since MetaSchedule applies none to blocks with the annotation of topi's pooling.

    Args:
        schedule: The schedule of a whole unscheduled function.
        device: The device that the tiles are for.
    """
    for reduction in blocks_of(schedule):
        contraction = read_window(schedule, reduction)
        roles = None if contraction is None else choose_roles(contraction, device)
        if contraction is None or roles is None or contraction.written[-1] != roles.vector.place:
            continue
        surroundings = settle_surroundings(schedule, reduction)
        if surroundings is None:
            return []
        _tile(schedule, reduction, contraction, roles, surroundings, device)
        return [schedule]
    return []


def _tile(
    schedule: Schedule,
    block: Any,
    contraction: Contraction,
    roles: Roles,
    surroundings: Surroundings,
    device: Device,
) -> None:
    """Apply the tile's primitives."""
    epilogue = surroundings.epilogue
    last = schedule.cache_write(block, 0, "global") if epilogue is None else epilogue
    loops = schedule.get_loops(block)
    taken = (roles.vector, roles.rows, roles.window)
    others = [loops[axis.place] for axis in contraction.spatial if axis not in taken]
    taps = taps_of(contraction, roles)
    *outer_taps, inner_tap = [loops[axis.place] for axis in taps]
    summed = [] if roles.summed is None else [loops[roles.summed.place]]
    vectors, lane = schedule.split(loops[roles.vector.place], [None, roles.lanes])
    lines = [] if roles.window is None else sampled(schedule, loops[roles.window.place], 2, roles.window.extent)
    rows = [] if roles.rows is None else sampled(schedule, loops[roles.rows.place], 2 if lines else 3, TILE.rows)
    vectors_outer, vectors_tile = sampled(schedule, vectors, 2, TILE.vectors)
    outermost = [*others, *lines[:1], *rows[:-2]]  # cores share the rows of a single line
    within = [*lines[1:], *rows[-2:-1], vectors_outer]
    tile = [*rows[-1:], vectors_tile, lane]
    schedule.reorder(*outermost, *within, *outer_taps, *summed, inner_tap, *tile)
    shared = schedule.fuse(*outermost) if outermost else schedule.add_unit_loop(within[0])
    schedule.reverse_compute_at(last, vectors_outer, preserve_unit_loops=True)
    for copy in surroundings.copies:
        schedule.compute_at(copy, shared, preserve_unit_loops=True)
        vectorize(schedule, copy, 1, roles.lanes)
    schedule.parallel(shared)
    schedule.vectorize(lane)
    for loop in tile[:-1]:
        schedule.unroll(loop)
    if 1 < taps[-1].extent <= TILE.unrolled_taps:
        schedule.unroll(inner_tap)
    registers = device.unit.registers
    note_bounds(schedule, block, Bounds(1, registers // 2, registers, cores=1))
    if in_step(schedule, last, block):
        vectorize(schedule, last, 1, roles.lanes)
