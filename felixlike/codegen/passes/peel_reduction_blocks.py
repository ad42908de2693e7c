"""Fuse a blocked reduction with its initialization and epilogue: only blocks between the first and the last use memory.

    for i, j: S[i, j] = 0               for k_0 in 4:
    for k_0 in 4:                           for i_0:
        for i_0, k_1, tile:         →           tile: T = 0 if k_0 = 0, else S[…]
            S[…] += a · b                       for k_1: tile: T += a · b
    for i, j: Z[i, j] = f(S[i, j])              tile: S[…] = T, or where k_0 = 3: Z[…] = f(T)

Input: an IRModule of scheduled PrimFuncs with loops over blocks annotated with `Blocks`. Output: the same module
without IR blocks, each nest rewritten together with the nests before and after it, if these run over the same sums
only. The sums of many rows do not stay in the L1 cache: two passes over them take a twentieth of the time of four
blocks.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import Blocks, Guard, Tile
from felixlike.codegen.passes.loop_tools import anew, number_of, unmarked, with_mark, with_marked_loops
from felixlike.codegen.passes.memory_places import same_element


def first_and_last(module: Module) -> Module:
    """Return the IRModule with the nests around annotated loops rewritten. Other functions are not changed."""
    return with_marked_loops(_tvm.map_functions(module, _with_blocks_done), Blocks, lambda _: unmarked)


def _with_blocks_done(func: Func) -> Func:
    """Rewrite the nests of a function."""
    if not any(map(Blocks.on, _tvm.found(func.body, _tvm.tirx.For))):
        return func
    return _tvm.structural_map(plain_loops.without_blocks(func), (_tvm.tirx.SeqStmt, _rewritten))


def _rewritten(sequence: Stmt) -> Stmt:
    """Rewrite the nest in a sequence of statements that has an annotated loop."""
    parts = list(sequence.seq)
    marked = [i for i, part in enumerate(parts) if isinstance(part, _tvm.tirx.For) and Blocks.on(part)]
    if len(marked) != 1 or not 0 < marked[0] < len(parts) - 1:
        return sequence
    place = marked[0]
    whole = _fused_nests(*parts[place - 1 : place + 2])
    return sequence if whole is None else _tvm.tirx.stmt_seq(*parts[: place - 1], whole, *parts[place + 2 :])


def _fused_nests(start: Any, blocks: Any, finish: Any) -> Any | None:
    """Fuse the three nests, or return None if they do not have the expected form."""
    inner = list(blocks.body.seq) if isinstance(blocks.body, _tvm.tirx.SeqStmt) else [blocks.body]
    (loops, update), (zeroed, zero), (last, result) = _nest(inner[-1]), _nest(start), _nest(finish)
    if not isinstance(update, _tvm.tirx.BufferStore) or not isinstance(zero, _tvm.tirx.BufferStore):
        return None
    sums, place = update.buffer, tuple(update.indices)
    steps = [n for n, f in enumerate(loops) if not any(_tvm.uses(index, f.loop_var) for index in place)]
    reads = [load for load in _tvm.found(result, _tvm.ir.TensorLoad) if load.source.same_as(sums)]
    numbers = isinstance(zero.value, _tvm.tirx.FloatImm | _tvm.tirx.IntImm) and zero.buffer.same_as(sums)
    if not steps or not reads or not numbers or not all(same_element(reads[0], other) for other in reads[1:]):
        return None
    outer, summing = loops[: steps[0]], loops[steps[0] :]
    tile = [f for n, f in enumerate(loops) if n > steps[0] and n not in steps]
    values = _values_at_element(reads[0].indices, last, place, tile)
    if values is None or _size(zeroed) != _size([*outer, *tile]):
        return None
    inside = [
        value < f.extent
        for f, value in ((f, values[f.loop_var]) for f in last)
        if _largest(value, [*outer, *tile]) >= int(f.extent)
    ]
    if inside:  # some sums exist only to fill tiles
        result = _tvm.tirx.IfThenElse(_tvm.tirx.all(*inside), result, None)
    written = [_tvm.substituted(store.indices[-1], values) for store in _tvm.found(result, _tvm.tirx.BufferStore)]
    if not tile or not all(_tvm.uses(index, tile[-1].loop_var) for index in written):
        return None  # vectors would be scattered
    rows, row = tile[:-2], tile[-2:]
    held = _tvm.tirx.decl_buffer([_size(rows), _size(row)], sums.dtype, name="tile")
    tile_indices = number_of(rows), number_of(row)

    def in_tile(root: Node) -> Node:
        return _tvm.structural_map(
            root, (_tvm.ir.TensorLoad, lambda load: held[tile_indices] if load.source.same_as(sums) else load)
        )

    number, ends = (
        blocks.loop_var,
        [_tvm.tirx.const(n, str(blocks.loop_var.ty.dtype)) for n in (0, int(blocks.extent) - 1)],
    )
    body = _tvm.tirx.stmt_seq(
        _tvm.tirx.AllocBuffer(held),
        _tvm.tirx.IfThenElse(
            number.equal(ends[0]),
            _nested_in(tile, _tvm.tirx.BufferStore(held, zero.value, tile_indices)),
            _nested_in(tile, _tvm.tirx.BufferStore(held, sums[place], tile_indices)),
        ),
        _nested_in(
            [with_mark(summing[0], Tile()), *summing[1:]],
            _tvm.tirx.BufferStore(held, in_tile(update.value), tile_indices),
        ),
        _tvm.tirx.IfThenElse(
            number.equal(ends[1]),
            _nested_in([*tile[:-1], with_mark(tile[-1], Guard())], _tvm.substituted(in_tile(result), values)),
            _nested_in(tile, _tvm.tirx.BufferStore(sums, held[tile_indices], place)),
        ),
    )
    return unmarked(blocks, _tvm.tirx.stmt_seq(*inner[:-1], _nested_in(outer, body)))


def _nest(statement: Stmt) -> tuple[list[Any], Any]:
    """Return the loops of a nest, outermost first, and the innermost body."""
    loops = []
    while isinstance(statement, _tvm.tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def _largest(value: TirExpr, loops: list[Loop]) -> int:
    """Return the upper bound of a value while some loops run."""
    analyzer = _tvm.sym.Analyzer()
    for f in loops:
        analyzer.bind(f.loop_var, _tvm.ir.Range(0, f.extent))
    return int(analyzer.const_int_bound(value).max_value)


def _size(loops: list[Loop]) -> int:
    """Return the iterations of a loop nest."""
    return math.prod(int(f.extent) for f in loops)


def _values_at_element(read: Any, loops: list[Loop], place: tuple[Any, ...], tile: list[Any]) -> dict[Any, Any] | None:
    """Return the values of the loops' variables at which an element of the tile is read, or None if unknown.

    `read` are the indices of the read: each is one variable, or the sum of a lane and a multiple of another variable.
    `place` are the element's indices in the variables of the tile's loops.
    """
    values: dict[Any, Any] = {}
    for index, place_index in zip(read, place, strict=True):
        index_loops = [f for f in loops if _tvm.uses(index, f.loop_var)]
        if len(index_loops) == 1 and index.same_as(index_loops[0].loop_var):
            values[index_loops[0].loop_var] = place_index
        elif len(index_loops) == 2:
            (many, lane), last = index_loops, tile[-1]
            width, rest = int(lane.extent), _tvm.simplify(place_index - last.loop_var)
            factor = _tvm.tirx.const(width, str(last.loop_var.ty.dtype))
            values |= {many.loop_var: _tvm.simplify(_tvm.tirx.floordiv(rest, factor)), lane.loop_var: last.loop_var}
            if int(last.extent) != width:
                return None
        difference = _tvm.simplify(_tvm.substituted(index, values) - place_index)
        if not isinstance(difference, _tvm.tirx.IntImm) or int(difference):
            return None
    return values if len(values) == len(loops) else None


def _nested_in(loops: list[Loop], body: Stmt) -> Stmt:
    """Return a statement in copies of loops, with new variables."""
    for loop in reversed(loops):
        body = anew(loop, body)
    return body
