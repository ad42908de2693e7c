"""Copy a step of both operands into shared memory, by all threads of a block together.

Input: a launch, a tile, a block. Output: statements. They are loops over the block's threads inside the loop over its
threads, as in TVM's schedules. Rows and columns beyond the end are read from the last valid one. Reduction steps beyond
the end are zeros.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Stmt
from felixlike.codegen.build import seq
from felixlike.dynamic.gpu.context import Block, Launch, side_of
from felixlike.dynamic.gpu.operand import Operand
from felixlike.dynamic.gpu.tile import BANK_SHIFT, BlockTile


def copies(launch: Launch, tile: BlockTile, block: Block, step: Any, stage: Any) -> Stmt:
    """Copy a step of both operands into a stage of shared memory."""
    return seq(*(_copy(launch, operand, tile, block, step, stage) for operand in (launch.left, launch.right)))


def _copy(launch: Launch, operand: Operand, tile: BlockTile, block: Block, step: Any, stage: Any) -> Stmt:
    """Copy a step of one operand; neighbouring threads copy neighbouring elements."""
    build, tirx, side = launch.build, _tvm.tirx, side_of(tile, operand)
    # Every tile must start at a whole vector, also after tiles of another height.
    sides = [side_of(other, operand) for other in launch.program.tiles]
    lanes = operand.lanes if all(other % operand.lanes == 0 for other in sides) else 1
    count = side * tile.depth // lanes
    base = stage * tile.words(side)

    def element(number: Any, lane: Any) -> Stmt:
        if operand.along:
            inner, place = tirx.floordiv(number, side // lanes), tirx.floormod(number, side // lanes) * lanes
        else:
            place, inner = tirx.floordiv(number, tile.depth), tirx.floormod(number, tile.depth)
        where = launch.place(base + inner * (side + BANK_SHIFT) + place) + lane
        main = _clamped(launch, operand, block, place, lanes) + lane
        value = _element(launch, operand, block, main, step * tile.depth + inner, tile.depth)
        return tirx.BufferStore(launch.shared[operand.name], value, [where])

    def thread(turn: Any) -> Stmt:
        def body(thread_index: Any) -> Stmt:
            number = turn * tile.threads + thread_index
            one = launch.memory.side_by_side(lanes, lambda lane: element(number, lane))
            return one if count % tile.threads == 0 else tirx.IfThenElse(number < count, one, None)

        return build.threads("threadIdx.x", tile.threads, body)

    copy = build.written_out("turn", -(-count // tile.threads), thread)
    if tile.stages == 1 or not operand.asynchronous:
        return copy
    return tirx.AttrStmt(build.const(0), "async_scope", build.const(1), copy)


def _clamped(launch: Launch, operand: Operand, block: Block, place: Any, lanes: int) -> Any:
    """Return the row or column of an element, clamped to the last valid one."""
    index = (block.row if operand.name == "rows" else block.column) + place
    if launch.ends_inside(operand):
        index = _tvm.tirx.min(index, launch.index(operand.main.extent) - lanes)
    return launch.place(index)


def _element(launch: Launch, operand: Operand, block: Block, main: Any, k: Any, depth: int) -> Any:
    """Return an element of an operand, zero beyond the reduction.

    main: Its row or column. k: Reduction step, over all reduction axes together. depth: Steps of a tile.
    """
    tirx, axes = _tvm.tirx, launch.operator.reduced
    at, rest = {**block.at, operand.main.variable: main}, k
    for axis in reversed(axes[1:]):
        extent = launch.index(axis.extent)
        at[axis.variable] = launch.place(tirx.floormod(rest, extent))
        rest = tirx.floordiv(rest, extent)
    at[axes[0].variable] = launch.place(rest)
    value = _tvm.substituted(operand.value, at)
    if isinstance(launch.steps, int) and launch.steps % depth == 0:
        return value
    return tirx.if_then_else(k < launch.index(launch.steps), value, tirx.const(0, operand.dtype))
