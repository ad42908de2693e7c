"""Split tiles that TVM would not keep on the stack into one buffer a row, which it does keep there.

    T = alloc[8, 48]                          T_0, …, T_7 = alloc[48]
    for k:                               →    for k:
        unroll r in 8, v in 3: T[r, v] += …       unroll v in 3: T_0[v] += …   …   unroll v in 3: T_7[v] += …

Input: an IRModule of scheduled PrimFuncs. Output: the same module, without blocks in functions with such tiles: buffers
of few rows, all of which are accessed by unrolled loops, and those that reductions annotated with `Prefetch` or `Tile`
write. LLVM keeps values on the stack in registers, and knows that prefetches do not access them. The transformations of
fast convolutions take 0.73 to 0.86 of the time on two cores of Zen 4. No benchmark repeats that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import Prefetch, Tile
from felixlike.codegen.passes.memory_places import bytes_of
from felixlike.codegen.passes.prefetch import STACK

_MOST_ROWS = 64
"""Upper limit on rows of a tile of several dimensions: 8 × 8 points, more than a fast convolution's tile has."""

_ADDRESS = "tirx.address_of"
"""The operator of pointers to elements, from which code may reach other elements."""


def tile_rows(module: Module) -> Module:
    """Return the IRModule with tiles in rows. Functions without unrolled loops are not changed."""
    return _tvm.map_functions(module, _with_tiles_in_rows)


def _with_tiles_in_rows(func: Func) -> Func:
    """Split the tiles of a function."""
    if not any(loop.kind == _tvm.tirx.ForKind.UNROLLED for loop in _tvm.found(func.body, _tvm.tirx.For)):
        return func
    plain = split = plain_loops.without_blocks(func)
    summed = [
        store.buffer
        for loop in _tvm.found(plain.body, _tvm.tirx.For)
        if Prefetch.on(loop) or Tile.on(loop)
        for store in _tvm.found(loop.body, _tvm.tirx.BufferStore)
    ]
    for buffer in (alloc.buffer for alloc in _tvm.found(plain.body, _tvm.tirx.AllocBuffer)):
        if not all(isinstance(extent, _tvm.tirx.IntImm) for extent in buffer.shape) or bytes_of(buffer) < STACK:
            continue
        if any(buffer.same_as(other) for other in summed) or _is_small_tile(plain, buffer):
            split = _in_rows(split, buffer)
    return split if summed or not split.same_as(plain) else func


def _is_small_tile(func: Func, buffer: Buffer) -> bool:
    """Return whether a buffer has few rows and is accessed by elements only."""
    if math.prod(_rows(buffer)) > _MOST_ROWS:
        return False
    calls = [call for call in _tvm.found(func.body, _tvm.ir.Call) if str(getattr(call.op, "name", "")) == _ADDRESS]
    return not any(load.source.same_as(buffer) for call in calls for load in _tvm.found(call, _tvm.ir.TensorLoad))


def _rows(buffer: Buffer) -> list[int]:
    """Return the extents of a buffer's dimensions but the last."""
    return [int(extent) for extent in buffer.shape[:-1]]


def _places(root: Node, buffer: Buffer) -> list[Any]:
    """Return the indices of every access to a buffer below a node."""
    loads = [(load.source, load.indices) for load in _tvm.found(root, _tvm.ir.TensorLoad)]
    stores = [(store.buffer, store.indices) for store in _tvm.found(root, _tvm.tirx.BufferStore)]
    return [indices for accessed, indices in (*loads, *stores) if accessed.same_as(buffer)]


def _unrolled(loop: Loop, buffer: Buffer) -> Stmt:
    """Return the steps of an unrolled loop over a buffer's rows. Other loops are not changed."""
    if loop.kind != _tvm.tirx.ForKind.UNROLLED:
        return loop
    if not any(_tvm.uses(index, loop.loop_var) for place in _places(loop.body, buffer) for index in place[:-1]):
        return loop
    steps = range(int(loop.extent))
    return _tvm.tirx.stmt_seq(*(_tvm.substituted(loop.body, {loop.loop_var: step}) for step in steps))


def _number(indices: Sequence[TirExpr], sizes: Sequence[int]) -> Any:
    """Return the number of the row that indices lie in."""
    number = _tvm.tirx.const(0, "int64")
    for index, size in zip(indices, sizes, strict=False):  # the last index is within the row
        number = number * size + index
    return _tvm.simplify(number)


def _in_rows(func: Func, buffer: Buffer) -> Func:
    """Return a function with a buffer split into rows.

    It is not changed if rows are too long, or accessed by loops that are not unrolled.
    """
    sizes, length = _rows(buffer), int(buffer.shape[-1])
    rows = math.prod(sizes)
    if (math.prod(sizes[:-1]) > 1 and rows > _MOST_ROWS) or bytes_of(buffer) // rows >= STACK:
        return func
    body = _tvm.structural_map(func.body, (_tvm.tirx.For, lambda loop: _unrolled(loop, buffer)))
    if not all(isinstance(_number(place, sizes), _tvm.tirx.IntImm) for place in _places(body, buffer)):
        return func
    parts = [_tvm.tirx.decl_buffer((length,), buffer.dtype, name=f"{buffer.name}_{row}") for row in range(rows)]

    def part(indices: Any) -> Buffer:
        return parts[int(_number(indices, sizes))]

    def load(node: Node) -> TirExpr:
        return part(node.indices)[node.indices[-1]] if node.source.same_as(buffer) else node

    def store(node: Node) -> Stmt:
        is_split = node.buffer.same_as(buffer)
        return _tvm.tirx.BufferStore(part(node.indices), node.value, [node.indices[-1]]) if is_split else node

    def alloc(node: Node) -> Stmt:
        return _tvm.tirx.stmt_seq(*map(_tvm.tirx.AllocBuffer, parts)) if node.buffer.same_as(buffer) else node

    for kind, change in (
        (_tvm.ir.TensorLoad, load),
        (_tvm.tirx.BufferStore, store),
        (_tvm.tirx.AllocBuffer, alloc),
    ):
        body = _tvm.structural_map(body, (kind, change))
    return func.with_body(_tvm.structural_map(body, (_tvm.tirx.SeqStmt, lambda seq: _tvm.tirx.stmt_seq(*seq.seq))))
