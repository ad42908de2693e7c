"""A tile whose vectors lie across what it is written to is transposed in registers.

    for c in 16, x in 14:               for start in 0, 6:
        Z[c, x] = f(tile[x, c])   →         R = tile[start : start + 8, 0 : 16], transposed by shuffles
                                            for c in 16: vector x in 8: Z[c, start + x] = f(R[c, x])

In: an IRModule of scheduled PrimFuncs in which a schedule marked such pairs of loops with `Transpose`. Out: the same
without blocks, the pairs rewritten. LLVM would scatter vectors, an element a cycle, while nothing else goes on: a
seventh of the time where few channels are summed. Squares of rows are exchanged in log₂ steps (Eklundh 1972, A fast
computer method for matrix transposing), for all squares of a vector at once. Where squares do not divide the rows, the
last one begins earlier and writes some elements again. A few squares are written out; more are a loop. Where an input
is copied, and a test says that the end of a dimension lies within a tile, the whole tile begins earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Loop, Module, Stmt, TirExpr, Var
from felixlike.codegen.annotations import Transpose
from felixlike.codegen.passes.loop_tools import conjuncts, like, step_along, unmarked, variable_like, with_marked_loops
from felixlike.codegen.passes.memory_places import place_of, same_element
from felixlike.hardware.vectors import power_of_two_below

_LEAST, _MOST = 4, 8
"""Rows of a square. Less does not pay; more would need more registers than there are."""


_WRITTEN_OUT = 4
"""Squares that are written out one after the other; more are a loop, whose code does not grow with the rows."""


def transpose(module: Module) -> Module:
    """The IRModule with marked loops rewritten: functions without any are left alone."""
    return with_marked_loops(module, Transpose, lambda func: partial(_transposed, list(func.params)))


def _transposed(inputs: Sequence[Buffer], marked: Loop) -> Stmt:
    lanes = Transpose.of(marked).lanes
    loop, starts = _within_bounds(marked, inputs)
    rows, load = loop.body, _across(loop)
    size = min(lanes, _MOST, power_of_two_below(int(rows.extent))) if load is not None else 0
    if load is None or size < _LEAST or int(loop.extent) % lanes:
        return unmarked(marked)
    column, row, store = loop.loop_var, rows.loop_var, rows.body
    outer = variable_like(column)
    transposed = _tvm.tirx.decl_buffer((lanes, size), load.source.dtype, name="turned")
    read = _along(load.source, load.indices, loop, column)
    written = _along(store.buffer, store.indices, loop, row)

    def square(start: Any) -> list[Any]:
        """What transposes some rows, from one on, and writes them."""
        places = [{column: outer * lanes, row: start + i} for i in range(size)]
        loaded = _shuffled(transposed, load.source, [_placed(read, place) for place in places])
        lane, step = variable_like(column), variable_like(row)
        value = _tvm.structural_map(
            store.value, (_tvm.ir.TensorLoad, lambda one: transposed[lane, step] if same_element(one, load) else one)
        )
        body = _tvm.tirx.BufferStore(store.buffer, value, written)
        body = _tvm.substituted(body, {column: outer * lanes + lane, row: step + start})
        return [*loaded, _loop(lane, lanes, "UNROLLED", _loop(step, size, "VECTORIZED", body))]

    count, left = divmod(int(rows.extent), size)
    statements: list[Any] = []
    if count <= _WRITTEN_OUT:
        statements += [part for number in range(count) for part in square(number * size)]
    else:
        number = variable_like(row)
        statements.append(_loop(number, count, "SERIAL", _tvm.tirx.stmt_seq(*square(number * size))))
    if left:
        statements += square(int(rows.extent) - size)
    everything = _loop(outer, int(loop.extent) // lanes, "SERIAL", _tvm.tirx.stmt_seq(*statements))
    return _tvm.tirx.stmt_seq(*starts, _tvm.tirx.AllocBuffer(transposed), everything)


def _within_bounds(loop: Loop, inputs: Sequence[Buffer]) -> tuple[Loop, list[Any]]:
    """The pair of loops without tests whether elements exist, and beginning so early that all do, and what names by how
    much; as it is where there are none, or others, or what is read was not there before.

    v < n, where the loop runs over v … v + e − 1: it starts from min(v, n − e), so n must be at least e."""
    rows = loop.body
    tested = rows.body if isinstance(rows, _tvm.tirx.For) else None
    if not isinstance(tested, _tvm.tirx.IfThenElse) or tested.else_case is not None:
        return loop, []
    read = getattr(getattr(tested.then_case, "value", None), "source", None)
    if read is None or not any(read.same_as(buffer) for buffer in inputs):
        return loop, []
    names, shifted = [], {}
    for test in conjuncts(tested.condition):
        pair = [f for f in (loop, rows) if _tvm.uses(test, f.loop_var)]
        if not isinstance(test, _tvm.tirx.LT) or len(pair) != 1 or pair[0].loop_var in shifted:
            return loop, []
        variable, extent = pair[0].loop_var, int(pair[0].extent)
        if step_along(test.a, variable) != 1 or not isinstance(test.b, _tvm.tirx.IntImm) or int(test.b) < extent:
            return loop, []
        start = _tvm.substituted(test.a, {variable: like(variable, 0)})
        # Named, since TVM's simplifier fails where it may look into a minimum under a division.
        name = _tvm.tirx.Var("start", str(start.ty.dtype))
        names.append(_tvm.tirx.Bind(name, _tvm.tirx.min(start, test.b - extent)))
        shifted[variable] = variable + (name - start).astype(str(variable.ty.dtype))
    body = unmarked(rows, _tvm.substituted(tested.then_case, shifted))
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body), names


def _across(loop: Loop) -> Any | None:
    """The load whose elements the loop steps through, and whose vectors the loop inside it; None where the pair of
    loops is something else, or several elements are loaded so."""
    rows = loop.body
    plain = isinstance(rows, _tvm.tirx.For) and isinstance(rows.body, _tvm.tirx.BufferStore)
    if not plain or any(int(f.min) for f in (loop, rows)):
        return None
    column, row = loop.loop_var, rows.loop_var

    def steps(access: Any, buffer: Buffer) -> tuple[int | None, int | None]:
        place = _place(buffer, access.indices, loop)
        return step_along(place, column), step_along(place, row)

    loads = [(load, *steps(load, load.source)) for load in _tvm.found(rows.body.value, _tvm.ir.TensorLoad)]
    found = [load for load, by_column, by_row in loads if by_column == 1 and by_row is not None and by_row > 1]
    by_column, by_row = steps(rows.body, rows.body.buffer)
    along = by_row == 1 and by_column is not None and by_column > 1
    return found[0] if along and found and all(same_element(found[0], other) for other in found) else None


def _place(buffer: Buffer, indices: Any, loop: Loop) -> TirExpr:
    """Which element of a buffer indices stand for, counted in the order of memory; simple in the pair of loops."""
    analyzer = _tvm.sym.Analyzer()
    for f in (loop, loop.body):
        analyzer.bind(f.loop_var, _tvm.ir.Range(0, f.extent))
    return analyzer.simplify(place_of(buffer, indices))


def _along(buffer: Buffer, indices: Any, loop: Loop, variable: Var) -> list[Any]:
    """The indices, where the variable steps through the last dimension alone; or the same element counted in the order
    of memory, as after loops over neighbouring dimensions were fused."""
    *outer, last = indices
    if step_along(last, variable) == 1 and not any(_tvm.uses(index, variable) for index in outer):
        return [*indices]
    return [*(0 for _ in outer), _place(buffer, indices, loop)]


def _placed(indices: list[Any], values: dict[Any, Any]) -> list[Any]:
    return [_tvm.simplify(_tvm.substituted(index, values)) if hasattr(index, "ty") else index for index in indices]


def _shuffled(transposed: Any, tile: Any, places: list[list[Any]]) -> Iterator[Any]:
    """What loads the vectors that begin at some places of a tile, and writes them transposed.

    After the step of squares of 2·d, row i holds in each of them what the rows i − i mod 2·d … of that square's column
    i mod 2·d held."""
    lanes, size = (int(extent) for extent in transposed.shape)
    rows: list[Any] = []

    def named(value: TirExpr) -> Iterator[Any]:
        rows.append(_tvm.tirx.Var("row", value.ty))
        yield _tvm.tirx.Bind(rows[-1], value)

    for *outer, first in places:
        yield from named(tile[(*outer, _tvm.tirx.Ramp(first, _tvm.tirx.const(1, str(first.ty.dtype)), lanes))])
    distance = 1
    while distance < size:
        before, rows = rows, []
        for i in range(size):
            pair = [before[i & ~distance], before[i | distance]]
            own = [k & ~distance | i & distance for k in range(lanes)]
            yield from named(_tvm.tirx.Shuffle(pair, [k + lanes * bool(j & distance) for j, k in enumerate(own)]))
        distance *= 2
    for column in range(lanes):
        taken = [column - column % size + k for k in range(size)]
        place = (column, _tvm.tirx.Ramp(_tvm.tirx.const(0, "int64"), _tvm.tirx.const(1, "int64"), size))
        yield _tvm.tirx.BufferStore(transposed, _tvm.tirx.Shuffle([rows[column % size]], taken), place)


def _loop(variable: Var, extent: int, kind: str, body: Stmt) -> Loop:
    start, stop = (_tvm.tirx.const(value, str(variable.ty.dtype)) for value in (0, extent))
    return _tvm.tirx.For(variable, start, stop, _tvm.tirx.ForKind[kind], body)
