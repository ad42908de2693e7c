"""Schedule a contraction between two transformations of small tiles: a few rows of tiles at a time, in a core's cache.

    for i, j, n, y, x, c: V[i, j, n, y, x, c] = …           parallel for n, y_0:
    for i, j, n, y, x, k, c:                                    for y_1, x, c_0: unroll i, j: vector c_1: V[…] = …
        M[i, j, n, y, x, k] += V[…] · U[i, j, c, k]      →      for i, j, k_0, y_1, x_0:
    for n, y, x, i, j, k: Y[n, 4y + i, 4x + j, k] = …               for c:
                                                                        unroll x_1, k_1: vector k_2: T[…] += V[…] · U[…]
                                                                    M[…] = T[…]
                                                                for y_1, x, k_0: unroll i, j: vector k_1: Y[…] = …

V and M are several times as large as the tensors that a convolution reads and writes. In kernels of their own they move
through the caches that cores share, or from one core's cache to another's. Here each core keeps those of its rows. On
two cores of Zen 4, a 3×3 convolution of 64 channels at 56 × 56 takes 0.95 of the time that three kernels take, and 0.53
where the hypervisor has moved the cores so far apart that a word takes six times as long from one to the other. No
benchmark repeats that.

Both transformations are scheduled as `tile_cases.py` does it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.codegen.annotations import Prefetch
from felixlike.hardware import Device, estimate
from felixlike.hardware.vectors import TILE
from felixlike.spaces.blocks import blocks_of, elementwise, sampled
from felixlike.spaces.contraction import Contraction, read_contraction
from felixlike.spaces.cpu.register_bounds import Extents, note_bounds, reachable_bounds
from felixlike.spaces.cpu.tile_cases import cases, compute_stages, inline_stages, loops_of_tile, split_vectors, write
from felixlike.spaces.stages import item_bits

_MOST_ROWS = 16
"""Upper limit on rows of tiles of a parallel iteration, when sampling. Chosen by hand."""


def transformed_tiles(schedule: Schedule, device: Device) -> list[Schedule]:
    """Return the schedule, changed, or [] if the rule does not apply.

    It does not apply unless one block is a contraction, all others are elementwise, and some before and after it have
    cases.
    """
    lanes = device.unit.lanes(item_bits(schedule))
    sums = [block for block in blocks_of(schedule) if not elementwise(schedule, block)]
    contraction = read_contraction(schedule, sums[0]) if len(sums) == 1 else None
    if contraction is None or not _is_of_tiles(contraction, lanes):
        return []
    inline_stages(schedule)
    blocks = blocks_of(schedule)
    place = next(i for i, block in enumerate(blocks) if not elementwise(schedule, block))
    before, product, after = blocks[:place], blocks[place], blocks[place + 1 :]
    if not before or not cases(schedule, before[-1]) or not any(cases(schedule, block) for block in after):
        return []
    outer, inner = loops_of_tile(schedule, after, schedule.get_loops(after[-1]))
    if len(outer) < len(("image", "row", "column", "channel")) or not inner:
        return []
    *images, row, column, channel = outer
    strips, row = sampled(schedule, row, 2, _MOST_ROWS)
    vectors, lane = split_vectors(schedule, channel, lanes)
    schedule.reorder(*images, strips, row, column, vectors, *inner, lane)
    shared = schedule.fuse(*images, strips)
    schedule.parallel(shared)
    compute_stages(schedule, after[:-1], shared, (row, column, vectors), lanes)
    write(schedule, inner, lane)
    written = schedule.cache_write(product, 0, "global")
    for block in (written, product, before[-1]):
        schedule.compute_at(block, shared, preserve_unit_loops=True)
    outer, inner = loops_of_tile(schedule, before, schedule.get_loops(before[-1])[1:])
    *outer, channel = outer
    vectors, lane = split_vectors(schedule, channel, lanes)
    schedule.reorder(*outer, vectors, *inner, lane)
    compute_stages(schedule, before[:-1], shared, (*outer, vectors), lanes)
    write(schedule, inner, lane)
    _tile(schedule, product, written, contraction, device, lanes)
    return [schedule]


def _is_of_tiles(contraction: Contraction, lanes: int) -> bool:
    """Return whether a contraction multiplies tiles in rows and columns by a constant, with channels in vectors."""
    if len(contraction.reduction) != 1 or len(contraction.spatial) < len(("point", "row", "column", "channel")):
        return False
    *_, column, channel = contraction.spatial
    constants = [operand for operand in contraction.operands if operand.constant]
    return (
        len(constants) == 1
        and channel.place in constants[0].axes
        and column.place not in constants[0].axes
        and channel.extent % lanes == 0
        and contraction.axes[-1].reduced
    )


def _tile(
    schedule: Schedule, product: BlockRef, written: BlockRef, contraction: Contraction, device: Device, lanes: int
) -> None:
    """Tile a contraction, which is computed at the parallel loop, for registers."""
    shared, *points, row, column, channel, summed = schedule.get_loops(product)
    vectors, lane = schedule.split(channel, [None, lanes])
    vectors, row_vectors = sampled(schedule, vectors, 2, TILE.vectors)
    column, columns = sampled(schedule, column, 2, TILE.rows)
    schedule.reorder(*points, vectors, row, column, summed, columns, row_vectors, lane)
    schedule.reverse_compute_at(written, column, preserve_unit_loops=True)
    write(schedule, (columns, row_vectors), lane)
    Prefetch().put(schedule, summed)
    *within, last = schedule.get_loops(written)[len((shared, *points, vectors, row, column)) :]
    vectors, lane = split_vectors(schedule, last, lanes)
    write(schedule, (*within, vectors), lane)
    (constant,) = (operand for operand in contraction.operands if operand.constant)
    *others, across, lanes_of_row = contraction.spatial
    strips = prod(axis.extent for axis in others if axis.place not in constant.axes)
    extents = Extents(lanes_of_row.extent // lanes, TILE.vectors, across.extent, TILE.rows, others=strips)
    bounds = reachable_bounds(extents, registers=device.unit.registers, unrolled=False, cores=1)
    note_bounds(schedule, product, replace(bounds, cores=device.cores if estimate.even(strips, device.cores) else 1))
