"""Transpose a tile in registers if its vectors lie across the output's last dimension.

    for c in 16, x in 14:               for start in 0, 6:
        Z[c, x] = f(tile[x, c])   →         R = tile[start : start + 8, 0 : 16], transposed by shuffles
                                            for c in 16: vector x in 8: Z[c, start + x] = f(R[c, x])

Input: an IRModule of scheduled PrimFuncs with such pairs of loops annotated with `Transpose`. Output: the same module
without blocks, with the pairs rewritten. LLVM would scatter vectors, one element a cycle, while nothing else runs: a
seventh of the time for reductions over few channels. Squares of rows are exchanged in log₂ steps (Eklundh 1972, A fast
computer method for matrix transposing), for all squares of a vector at once. If squares do not divide the rows, the
last one begins earlier and writes some elements again. A few squares are unrolled, more are a loop. If an input is
copied, and a test shows that the end of a dimension is within a tile, the whole tile begins earlier. Where a copy adds
padding, rows that do not exist are read from the nearest one that does, and then replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Loop, Module, Stmt, TirExpr, Var
from felixlike.codegen.annotations import Transpose
from felixlike.codegen.masking import conjuncts
from felixlike.codegen.passes.loop_tools import like, step_along, unmarked, variable_like, with_marked_loops
from felixlike.codegen.passes.memory_places import place_of, same_element
from felixlike.hardware.vectors import power_of_two_below

_LEAST, _MOST = 4, 16
"""Limits on the rows of a square. Smaller ones do not pay; vectors longer than 8 elements come with 32 registers."""


_WRITTEN_OUT = 4
"""Upper limit on squares that are unrolled. More are a loop, whose code does not grow with the rows."""


def transpose(module: Module) -> Module:
    """Return the IRModule with annotated loops rewritten. Other functions are not changed."""
    return with_marked_loops(module, Transpose, lambda func: partial(_transposed, list(func.params)))


def _transposed(inputs: Sequence[Buffer], marked: Loop) -> Stmt:
    """Return the replacement of an annotated loop."""
    lanes = Transpose.of(marked).lanes
    loop, starts = _within_bounds(marked, inputs)
    rows, load = loop.body, _across(loop)
    size = min(lanes, _MOST, power_of_two_below(int(rows.extent))) if load is not None else 0
    beyond = _beyond(loop, load) if load is not None else None
    if load is None or beyond is None or size < _LEAST or int(loop.extent) % lanes:
        return unmarked(marked)
    column, row, store = loop.loop_var, rows.loop_var, rows.body
    outer = variable_like(column)
    transposed = _tvm.tirx.decl_buffer((lanes, size), load.source.dtype, name="turned")
    read = _along(load.source, load.indices, loop, column)
    written = _along(store.buffer, store.indices, loop, row)

    def square(start: Any) -> list[Any]:
        """Return the statements that transpose and write the rows from `start` on."""
        named, places = [], []
        for i in range(size):
            place = start + i
            for distance in beyond:
                # Named, because TVM's simplifier fails on a maximum below a division.
                rows_beyond = _tvm.tirx.Var("beyond", str(row.ty.dtype))
                named.append(_tvm.tirx.Bind(rows_beyond, _tvm.substituted(distance, {row: like(row, 0) + place})))
                place = place - rows_beyond
            places.append({column: outer * lanes, row: place})
        loaded = [*named, *_shuffled(transposed, load.source, [_placed(read, place) for place in places])]
        lane, step = variable_like(column), variable_like(row)
        value = _tvm.structural_map(
            _without_branches(store.value, load) if beyond else store.value,
            (_tvm.ir.TensorLoad, lambda one: transposed[lane, step] if same_element(one, load) else one),
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
    """Return the pair of loops without tests, shifted so that all elements exist, and the shift's bindings.

    The condition v < n, where the loop runs over v … v + e − 1, makes the loop start from min(v, n − e). n must be at
    least e. The pair is returned unchanged if it has no tests, or others, or if it reads anything but an input.
    """
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
        # Named, because TVM's simplifier fails on a minimum below a division.
        name = _tvm.tirx.Var("start", str(start.ty.dtype))
        names.append(_tvm.tirx.Bind(name, _tvm.tirx.min(start, test.b - extent)))
        shifted[variable] = variable + (name - start).astype(str(variable.ty.dtype))
    body = unmarked(rows, _tvm.substituted(tested.then_case, shifted))
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body), names


def _beyond(loop: Loop, load: Any) -> list[Any] | None:
    """Return by how much a row is beyond the last one that exists, or, negative, before the first, for each test of it.

    The tests are conditions of `if_then_else` around the load, as of a copy that adds padding. Returns None if one of
    them is of anything but rows, or if something else is loaded under one.
    """
    column, row = loop.loop_var, loop.body.loop_var
    distances = []
    for call in _tvm.found(loop.body.body.value, _tvm.ir.Call):
        if not _is_branch(call, load):
            continue
        condition, then, otherwise = call.args
        if _loads(otherwise) or not all(same_element(one, load) for one in _loads(then)):
            return None
        for test in conjuncts(condition):
            kind = type(test).__name__
            if kind not in ("LT", "LE", "GT", "GE"):
                return None
            less, more = (test.a, test.b) if kind in ("LT", "LE") else (test.b, test.a)
            # Positive where a row does not exist.
            excess = _tvm.simplify(less - more + (1 if kind in ("LT", "GT") else 0))
            step = step_along(excess, row)
            if _tvm.uses(excess, column) or step not in (1, -1):
                return None
            distance = _tvm.tirx.max(excess, like(row, 0).astype(str(excess.ty.dtype))) * step
            distances.append(distance.astype(str(row.ty.dtype)))
    return distances


def _is_branch(call: Any, load: Any) -> bool:
    """Return whether a call is an `if_then_else` around a load."""
    return "if_then_else" in str(call.op) and any(same_element(one, load) for one in _loads(call))


def _loads(value: TirExpr) -> list[Any]:
    """Return the loads in a value."""
    return list(_tvm.found(value, _tvm.ir.TensorLoad))


def _without_branches(value: TirExpr, load: Any) -> TirExpr:
    """Return a value that selects where it had branches around a load. TVM vectorizes the former only."""

    def selected(call: Any) -> TirExpr:
        return _tvm.tirx.Select(*call.args) if _is_branch(call, load) else call

    mapped: TirExpr = _tvm.structural_map(value, (_tvm.ir.Call, selected))
    return mapped


def _across(loop: Loop) -> Any | None:
    """Return the load whose elements the outer loop steps through, and whose vectors the inner loop steps through.

    Returns None if the loops have another form, or several different elements are loaded so.
    """
    rows = loop.body
    plain = isinstance(rows, _tvm.tirx.For) and isinstance(rows.body, _tvm.tirx.BufferStore)
    if not plain or any(int(f.min) for f in (loop, rows)):
        return None
    column, row = loop.loop_var, rows.loop_var

    def steps(access: Any, buffer: Buffer) -> tuple[int | None, int | None]:
        place = _place(buffer, access.indices, loop)
        return step_along(place, column), step_along(place, row)

    loads = [(load, *steps(load, load.source)) for load in _tvm.found(rows.body.value, _tvm.ir.TensorLoad)]
    candidates = [load for load, by_column, by_row in loads if by_column == 1 and by_row is not None and by_row > 1]
    by_column, by_row = steps(rows.body, rows.body.buffer)
    along = by_row == 1 and by_column is not None and by_column > 1
    return (
        candidates[0]
        if along and candidates and all(same_element(candidates[0], other) for other in candidates)
        else None
    )


def _place(buffer: Buffer, indices: Any, loop: Loop) -> TirExpr:
    """Return the position of an element in a buffer, counted in memory order and simplified over the pair of loops."""
    analyzer = _tvm.sym.Analyzer()
    for f in (loop, loop.body):
        analyzer.bind(f.loop_var, _tvm.ir.Range(0, f.extent))
    return analyzer.simplify(place_of(buffer, indices))


def _along(buffer: Buffer, indices: Any, loop: Loop, variable: Var) -> list[Any]:
    """Return the indices if the variable only steps through the last dimension.

    Otherwise, return indices of the same element counted in memory order, as needed after neighbouring dimensions were
    fused.
    """
    *outer, last = indices
    if step_along(last, variable) == 1 and not any(_tvm.uses(index, variable) for index in outer):
        return [*indices]
    return [*(0 for _ in outer), _place(buffer, indices, loop)]


def _placed(indices: list[Any], values: dict[Any, Any]) -> list[Any]:
    """Return the indices at values of the variables."""
    return [_tvm.simplify(_tvm.substituted(index, values)) if hasattr(index, "ty") else index for index in indices]


def _shuffled(transposed: Any, tile: Any, places: list[list[Any]]) -> Iterator[Any]:
    """Yield the statements that load the vectors at some places of a tile and store them transposed.

    After the step for squares of 2·d, row i has in each square what row i − i mod 2·d + … had in column i mod 2·d of
    that square.
    """
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
            indices = [k & ~distance | i & distance for k in range(lanes)]
            yield from named(_tvm.tirx.Shuffle(pair, [k + lanes * bool(j & distance) for j, k in enumerate(indices)]))
        distance *= 2
    for column in range(lanes):
        taken = [column - column % size + k for k in range(size)]
        place = (column, _tvm.tirx.Ramp(_tvm.tirx.const(0, "int64"), _tvm.tirx.const(1, "int64"), size))
        yield _tvm.tirx.BufferStore(transposed, _tvm.tirx.Shuffle([rows[column % size]], taken), place)


def _loop(variable: Var, extent: int, kind: str, body: Stmt) -> Loop:
    """Return a loop over an extent."""
    start, stop = (_tvm.tirx.const(value, str(variable.ty.dtype)) for value in (0, extent))
    return _tvm.tirx.For(variable, start, stop, _tvm.tirx.ForKind[kind], body)
