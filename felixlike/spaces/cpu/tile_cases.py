"""Schedule stages whose code depends on the position in a small tile: all stages of a tile at once, in registers.

    for n, y, x, i, j, c:                               parallel for n, y, x_0:
        S[…] = i = 0 ? P[4y, 4x + j] − … : …                P = the padded input that these tiles need
    for i, j, n, y, x, c:                      →            for x_1, c_0:
        V[…] = j = 0 ? S[…, i, 0] − … : …                       unroll i, j: vector c_1: S[i, j, c_1] = …
                                                                unroll i, j: vector c_1: V[i, j, n, y, x, c] = …

An axis whose values select the code is unrolled, so that each case is known. Axes that run through a tile of such
results are unrolled, too. The rule reads loop nests and conditions, never names of operators. Stages without cases are
inlined into the next one, except those that pad: they are copied for each parallel iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import or_
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, LoopRef, Schedule
from felixlike.spaces.blocks import blocks_of, costs, elementwise, sampled

_MOST_TILES = 64
"""Upper limit on tiles of a parallel iteration along one dimension, when sampling. They share a copy of the padded
input. Chosen by hand."""

_Tile = dict[Any, set[int]]
"""For each buffer, the dimensions that run through a tile."""


def case_by_case(schedule: Schedule, lanes: int) -> list[Schedule]:
    """Return the schedule, changed, with all stages of a tile computed together, or [] if the rule does not apply.

    It does not apply if no stage has cases, or if a stage is not elementwise. `lanes` is the number of elements of a
    vector.
    """
    blocks = blocks_of(schedule)
    if not all(elementwise(schedule, b) for b in blocks) or not any(cases(schedule, b) for b in blocks):
        return []
    inline_stages(schedule)
    *stages, last = blocks_of(schedule)
    outer, inner = loops_of_tile(schedule, (*stages, last), schedule.get_loops(last))
    *outer, channel = outer
    if not outer:
        return []
    tiles = sampled(schedule, outer[-1], 2, _MOST_TILES)
    vectors, lane = split_vectors(schedule, channel, lanes)
    schedule.reorder(*outer[:-1], *tiles, vectors, *inner, lane)
    shared = schedule.fuse(*outer[:-1], tiles[0])
    schedule.parallel(shared)
    compute_stages(schedule, stages, shared, (tiles[1], vectors), lanes)
    write(schedule, inner, lane)
    return [schedule]


def inline_stages(schedule: Schedule) -> None:
    """Inline all stages but the last that have neither cases nor calls."""
    for block in blocks_of(schedule)[:-1]:
        if elementwise(schedule, block) and not cases(schedule, block) and not costs(schedule, block):
            schedule.compute_inline(block)


def compute_stages(
    schedule: Schedule, stages: Sequence[BlockRef], shared: LoopRef, tile: Sequence[LoopRef], lanes: int
) -> None:
    """Compute stages before they are read.

    Stages after one with cases read its tile, perhaps twice (x · sigmoid(x)), and therefore run at the same loop.

    Args:
        schedule: The schedule.
        stages: The stages, in order.
        shared: The parallel loop, where those before the first one with cases run.
        tile: The loops below it around a tile. The others run in the innermost one.
        lanes: Elements of a vector.
    """
    cased = list(accumulate((bool(cases(schedule, stage)) for stage in stages), or_))
    for stage, at_tile in zip(reversed(stages), reversed(cased), strict=True):
        schedule.compute_at(stage, tile[-1] if at_tile else shared, preserve_unit_loops=True)
    for stage, at_tile in zip(stages, cased, strict=True):
        *within, lane = schedule.get_loops(stage)[1 + len(tile) if at_tile else 1 :]
        if not at_tile:
            _, lane = split_vectors(schedule, lane, lanes)
        write(schedule, within if at_tile else [], lane)


def cases(schedule: Schedule, block: BlockRef) -> list[Any]:
    """Return the variables of a block whose values select what it computes."""
    statement = schedule.get(block)
    conditions = [select.condition for select in _tvm.found(statement.body, _tvm.tirx.Select)]
    sides = [side for c in conditions if isinstance(c, _tvm.tirx.EQ) for side in (c.a, c.b)]
    return [i.var for i in statement.iter_vars if any(side.same_as(i.var) for side in sides)]


def _tile_dimensions(schedule: Schedule, blocks: Sequence[BlockRef]) -> _Tile:
    """Return the dimensions of the stages' buffers that run through a tile.

    These are the dimensions along which the writer has cases or runs through a tile itself, and those that a reader
    indexes with constants.
    """
    dimensions: _Tile = {schedule.get(block).writes[0].source: set() for block in blocks}
    for block in blocks:
        statement = schedule.get(block)
        for load in _reads(schedule, block, dimensions):
            dimensions[load.source] |= {d for d, i in enumerate(load.indices) if isinstance(i, _tvm.tirx.IntImm)}
        inner = [*cases(schedule, block), *(v for v, _ in _tile_axes(schedule, block, dimensions))]
        for dimension, region in enumerate(statement.writes[0].region):
            if any(region.min.same_as(variable) for variable in inner):
                dimensions[statement.writes[0].source].add(dimension)
    return dimensions


def _tile_axes(schedule: Schedule, block: BlockRef, tile: _Tile) -> list[tuple[Any, int]]:
    """Return (variable, elements of the tile, 0 for all elements) of the axes along which a block reads tiles."""
    axes = []
    for load in _reads(schedule, block, tile):
        for index in (load.indices[d] for d in tile[load.source]):
            if isinstance(index, _tvm.tirx.Var):
                axes.append((index, 0))
            elif isinstance(index, _tvm.tirx.FloorMod) and isinstance(index.b, _tvm.tirx.IntImm):
                axes.append((index.a, int(index.b.value)))
    return axes


def _reads(schedule: Schedule, block: BlockRef, buffers: _Tile) -> list[Any]:
    """Return the loads of a block from some buffers, except from the buffer that it writes."""
    statement = schedule.get(block)
    written = statement.writes[0].source
    loads = _tvm.found(statement.body, _tvm.ir.TensorLoad)
    return [load for load in loads if load.source in buffers and not load.source.same_as(written)]


def loops_of_tile(
    schedule: Schedule, stages: Sequence[BlockRef], loops: Sequence[LoopRef]
) -> tuple[list[Any], list[Any]]:
    """Return the last stage's loops over tiles, in order and channels last, and its loops within a tile.

    Args:
        schedule: The schedule.
        stages: The stages, in order.
        loops: The last stage's loops, one for each of its variables.
    """
    block, tile = stages[-1], _tile_dimensions(schedule, stages)
    inner_variables = [(v, 0) for v in cases(schedule, block)] + _tile_axes(schedule, block, tile)
    outer, inner = [], []
    for iterator, loop in zip(schedule.get(block).iter_vars, loops, strict=True):
        size = next((size for v, size in inner_variables if v.same_as(iterator.var)), None)
        if size is None:
            outer.append(loop)
        elif size == 0:
            inner.append(loop)
        else:
            first, second = schedule.split(loop, [None, size])
            outer.append(first)
            inner.append(second)
    return outer, inner


def split_vectors(schedule: Schedule, loop: LoopRef, lanes: int) -> tuple[Any, Any]:
    """Split vectors off a loop, of fewer elements if no full vector divides it."""
    extent = int(schedule.get(loop).extent)
    first, second = schedule.split(loop, [None, min(lanes, extent & -extent)])
    return first, second


def write(schedule: Schedule, inner: Sequence[LoopRef], lane: LoopRef) -> None:
    """Unroll the inner loops and vectorize the lane."""
    for loop in inner:
        schedule.unroll(loop)
    schedule.vectorize(lane)
