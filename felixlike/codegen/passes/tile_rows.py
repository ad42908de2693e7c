"""Split a tile of sums that TVM would not keep on the stack into one buffer a row, which it does keep there.

    T = alloc[8, 48]                          T_0, …, T_7 = alloc[48]
    for k:                               →    for k:
        unroll r in 8, v in 3: T[r, v] += …       unroll v in 3: T_0[v] += …   …   unroll v in 3: T_7[v] += …

Input: an IRModule of scheduled PrimFuncs with reductions annotated with `Prefetch` or `Tile`. Output: the same module
without blocks, with these reductions' tiles in rows. LLVM knows that prefetches do not access the stack, and keeps only
sums on it in registers from step to step.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import Prefetch, Tile
from felixlike.codegen.passes.memory_places import bytes_of
from felixlike.codegen.passes.prefetch import STACK


def tile_rows(module: Module) -> Module:
    """Return the IRModule with tiles in rows. Functions without annotated loops are not changed."""
    return _tvm.map_functions(module, _with_tiles_in_rows)


def _with_tiles_in_rows(func: Func) -> Func:
    """Split the tiles of a function."""
    if not any(map(_sums_up, _tvm.found(func.body, _tvm.tirx.For))):
        return func
    plain = plain_loops.without_blocks(func)
    summed = [
        store.buffer
        for loop in _tvm.found(plain.body, _tvm.tirx.For)
        if _sums_up(loop)
        for store in _tvm.found(loop.body, _tvm.tirx.BufferStore)
    ]
    for alloc in _tvm.found(plain.body, _tvm.tirx.AllocBuffer):
        buffer = alloc.buffer
        if any(buffer.same_as(other) for other in summed) and bytes_of(buffer) >= STACK:
            plain = _in_rows(plain, buffer)
    return plain


def _sums_up(loop: Loop) -> bool:
    """Return whether a loop is annotated as a reduction of a tile."""
    return Prefetch.on(loop) or Tile.on(loop)


def _places(root: Node, buffer: Buffer) -> list[Any]:
    """Return the indices of every access to a buffer below a node."""
    loads = [(load.source, load.indices) for load in _tvm.found(root, _tvm.ir.TensorLoad)]
    stores = [(store.buffer, store.indices) for store in _tvm.found(root, _tvm.tirx.BufferStore)]
    return [indices for accessed, indices in (*loads, *stores) if accessed.same_as(buffer)]


def _unrolled(loop: Loop, buffer: Buffer) -> Stmt:
    """Return the steps of an unrolled loop over a buffer's rows. Other loops are not changed."""
    if loop.kind != _tvm.tirx.ForKind.UNROLLED:
        return loop
    if not any(_tvm.uses(place[-2], loop.loop_var) for place in _places(loop.body, buffer)):
        return loop
    steps = range(int(loop.extent))
    return _tvm.tirx.stmt_seq(*(_tvm.substituted(loop.body, {loop.loop_var: step}) for step in steps))


def _in_rows(func: Func, buffer: Buffer) -> Func:
    """Return a function with a buffer split into rows.

    It is not changed if rows are too long, or accessed by loops that are not unrolled.
    """
    *outer, rows, length = (int(extent) for extent in buffer.shape)
    if math.prod(outer) > 1 or bytes_of(buffer) // rows >= STACK:
        return func
    body = _tvm.structural_map(func.body, (_tvm.tirx.For, lambda loop: _unrolled(loop, buffer)))
    numbers = [_tvm.simplify(place[-2]) for place in _places(body, buffer)]
    if not all(isinstance(number, _tvm.tirx.IntImm) for number in numbers):
        return func
    parts = [_tvm.tirx.decl_buffer((length,), buffer.dtype, name=f"{buffer.name}_{row}") for row in range(rows)]

    def part(indices: Any) -> Buffer:
        return parts[int(_tvm.simplify(indices[-2]))]

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
