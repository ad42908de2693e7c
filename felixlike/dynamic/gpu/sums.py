"""Generate what a thread does with its registers: sums of a step, sums across threads, the epilogue.

Input: a launch, a tile, a block. Output: statements.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt
from felixlike.codegen.build import seq
from felixlike.dynamic.gpu.context import Block, Launch, side_of
from felixlike.dynamic.gpu.operand import Operand
from felixlike.dynamic.gpu.tile import BANK_SHIFT, BlockTile
from felixlike.spaces.gpu.thread_axes import LANES, widest


def begun(launch: Launch, tile: BlockTile) -> Stmt:
    """Set all sums to zero."""
    zero = _tvm.tirx.const(0, launch.operator.dtype)
    return launch.build.written_out("sum", tile.sums, lambda i: _tvm.tirx.BufferStore(launch.sums, zero, [i]))


def summed_up(launch: Launch, tile: BlockTile, block: Block, stage: Any) -> Stmt:
    """Add the products of a step; with several slices each thread adds its share of the step."""
    build, tirx = launch.build, _tvm.tirx
    share = tile.depth // tile.slices
    first = _slice(tile, block) * share if tile.slices > 1 else build.const(0)

    def load(operand: Operand, step: Any, local: Any) -> Any:
        side = side_of(tile, operand)
        where = stage * tile.words(side) + step * (side + BANK_SHIFT) + _of_tile(operand, tile, block, local)
        return launch.shared[operand.name][where]

    def add(step: Any, i: Any, j: Any) -> Stmt:
        number = i * tile.own_columns + j
        product = _product(launch, load(launch.left, first + step, i), load(launch.right, first + step, j))
        return tirx.BufferStore(launch.sums, launch.sums[number] + product, [number])

    def row(step: Any, i: Any) -> Stmt:
        return build.loop("j", tile.own_columns, lambda j: add(step, i, j), "UNROLLED")

    return build.written_out("k", share, lambda k: build.loop("i", tile.own_rows, lambda i: row(k, i), "UNROLLED"))


def written(launch: Launch, tile: BlockTile, block: Block) -> Stmt:
    """Write the epilogue of the outputs that exist, in vectors where the output is contiguous.

    With several slices the first one adds the partial sums of the others.
    """
    if tile.slices == 1:
        return _stored(launch, tile, block)
    build, tirx, parts = launch.build, _tvm.tirx, launch.parts
    assert parts is not None
    threads = tile.threads // tile.slices
    thread_of_slice, number = tirx.floormod(block.thread, threads), _slice(tile, block)

    def place(part: Any, i: Any) -> Any:
        return ((part - 1) * tile.sums + i) * threads + thread_of_slice  # neighbouring threads use neighbouring banks

    def leave(i: Any) -> Stmt:
        return tirx.BufferStore(parts, launch.sums[i], [place(number, i)])

    def join(part: Any) -> Stmt:
        def one(i: Any) -> Stmt:
            return tirx.BufferStore(launch.sums, launch.sums[i] + parts[place(part + 1, i)], [i])

        return build.loop("sum", tile.sums, one, "UNROLLED")

    left = tirx.IfThenElse(number > 0, build.written_out("sum", tile.sums, leave), None)
    joined = seq(build.written_out("part", tile.slices - 1, join), _stored(launch, tile, block))
    return seq(left, tirx.IfThenElse(number == 0, joined, None))


def _stored(launch: Launch, tile: BlockTile, block: Block) -> Stmt:
    """Write the epilogue of a thread's outputs that exist."""
    operator, build, tirx = launch.operator, launch.build, _tvm.tirx
    rows, along = operator.rows, operator.along
    contiguous = operator.places[-1].same_as(along.variable) and isinstance(along.extent, int)
    wide = math.gcd(along.extent, _last(operator.written), tile.own_columns, LANES) if contiguous else 1
    lanes = widest(wide, _tvm.bits(str(operator.written.dtype)))

    def row(i: Any) -> Any:
        return block.row + _of_tile(launch.left, tile, block, i)

    def column(j: Any) -> Any:
        return block.column + _of_tile(launch.right, tile, block, j)

    def element(i: Any, j: Any, lane: Any) -> Stmt:
        place = {**block.at, rows.variable: launch.place(row(i)), along.variable: launch.place(column(j)) + lane}
        return operator.stored(launch.sums[launch.place(i * tile.own_columns + j) + lane], place)

    def vector(i: Any, number: Any) -> Stmt:
        one = launch.memory.side_by_side(lanes, lambda lane: element(i, number * lanes, lane))
        tests = [row(i) < launch.index(rows.extent)] if launch.ends_inside(launch.left) else []
        if launch.ends_inside(launch.right):
            tests.append(column(number * lanes) < launch.index(along.extent))
        return one if not tests else tirx.IfThenElse(tirx.all(*tests), one, None)

    def vectors(i: Any) -> Stmt:
        return build.loop("vector", tile.own_columns // lanes, lambda number: vector(i, number), "UNROLLED")

    return build.written_out("i", tile.own_rows, vectors)


def _slice(tile: BlockTile, block: Block) -> Any:
    """Return the slice that a thread belongs to."""
    return _tvm.tirx.floordiv(block.thread, tile.threads // tile.slices)


def _of_tile(operand: Operand, tile: BlockTile, block: Block, local: Any) -> Any:
    """Return the position in the tile of a row or column of a thread.

    A thread has groups of neighbours. Successive groups are as far apart as one group of every thread.
    """
    tirx, across = _tvm.tirx, tile.columns // tile.own_columns
    thread = block.thread
    if tile.slices > 1:
        thread = tirx.floormod(thread, tile.threads // tile.slices)
    if operand.name == "rows":
        count, thread, threads = tile.own_rows, tirx.floordiv(thread, across), tile.rows // tile.own_rows
    else:
        count, thread, threads = tile.own_columns, tirx.floormod(thread, across), across
    lanes = math.gcd(count, LANES)
    return tirx.floordiv(local, lanes) * (threads * lanes) + thread * lanes + tirx.floormod(local, lanes)


def _product(launch: Launch, left: Any, right: Any) -> Any:
    """Return the product of two elements, in the type of the sums."""
    cast = _tvm.tirx.Cast

    def factor(node: Any) -> Any:
        for operand, read in ((launch.left, left), (launch.right, right)):
            if _tvm.structural_equal(node, operand.value):
                return read
        return cast(str(node.ty.dtype), factor(node.value))

    def whole(node: Any) -> Any:
        if type(node).__name__ == "Cast":
            return cast(str(node.ty.dtype), whole(node.value))
        return factor(node.a) * factor(node.b)

    return whole(launch.operator.product)


def _last(buffer: Buffer) -> int:
    """Return a buffer's last size, which vectors must divide; 1 if it is dynamic."""
    size = buffer.shape[-1]
    return int(size) if isinstance(size, _tvm.tirx.IntImm) else 1
