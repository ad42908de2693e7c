"""Square blocks that turn: rows are loaded as vectors, turned in registers, and stored as vectors.

    for r in 16:                       v_0, … v_15 = A[…, 0 … 15], one for each c
        for c in 16:              →    for h in 8, 4, 2, 1: exchange bit h of a vector's number with that of its lanes
            B[r, c] = A[c, r]          B[0, 0 … 15], … = v_0, … v_15

In: an IRModule of scheduled PrimFuncs in which a schedule marked the outer loop with TURN. Out: the same without
blocks, the marked loops as vectors and shuffles, where the store is contiguous along the inner loop and the load along
the outer; others stay. Element by element it takes a cycle for each; in registers, log2 16 shuffles for each vector.
"""

from __future__ import annotations

from typing import Any

from felixlike.lowering.marks import with_marked_loops

TURN = "felixlike.turn"
"""Annotation of a loop that holds nothing but one of as many steps, a power of two, in which one element is copied."""


def turn_squares(module: Any) -> Any:
    """The IRModule with marked loops as vectors and shuffles: functions without any are left alone."""
    return with_marked_loops(module, TURN, lambda _: _turned)


def _turned(loop: Any) -> Any:
    from felixlike.tvmlib import tirx

    inner, size = loop.body, int(loop.extent)
    store = inner.body
    row, column = loop.loop_var, inner.loop_var
    load = store.value
    read = _line(load.source, load.indices, along=row, across=column, size=size)
    written = _line(store.buffer, store.indices, along=column, across=row, size=size)
    if read is None or written is None:
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body)
    kind = f"{load.source.dtype}x{size}"
    statements: list[Any] = []

    def kept(value: Any) -> Any:
        variable = tirx.Var("turned", kind)
        statements.append(tirx.Bind(variable, value))
        return variable

    vectors = [kept(tirx.BufferLoad(load.source, place)) for place in read]
    step = size // 2
    while step:
        # Of two vectors, the lower half of each pair of blocks of `step` lanes, and the upper.
        lower = [lane if not lane & step else size + lane - step for lane in range(size)]
        upper = [lane + step if not lane & step else size + lane for lane in range(size)]
        for number in range(size):
            if not number & step:
                pair = [vectors[number], vectors[number + step]]
                vectors[number] = kept(tirx.Shuffle(pair, lower))
                vectors[number + step] = kept(tirx.Shuffle(pair, upper))
        step //= 2
    statements += [tirx.BufferStore(store.buffer, v, place) for v, place in zip(vectors, written, strict=True)]
    return tirx.stmt_seq(*statements)


def _line(buffer: Any, indices: Any, *, along: Any, across: Any, size: int) -> list[list[Any]] | None:
    """For each value of `across`, the indices of the vector along `along`; None where that is not contiguous."""
    from felixlike import tvmlib
    from felixlike.tvmlib import tirx

    place = 0
    for index, extent in zip(indices, buffer.shape, strict=True):
        place = place * extent + index
    analyzer = tvmlib.sym.Analyzer()
    for variable in (along, across):
        analyzer.bind(variable, tvmlib.ir.Range(0, size))
    place = analyzer.simplify(place)
    start = tvmlib.simplify(tvmlib.substituted(place, {along: 0}))
    if not tvmlib.structural_equal(tvmlib.simplify(place - start), along):
        return None
    zeros = [0] * (len(buffer.shape) - 1)
    starts = [tvmlib.simplify(tvmlib.substituted(start, {across: n})) for n in range(size)]
    return [[*zeros, tirx.Ramp(s, tirx.const(1, str(s.ty.dtype)), size)] for s in starts]
