"""Groups of neighbouring columns, of which the last has fewer: a test around a group's loops, whole vectors within.

    for k in 77:                             if 64·g + 63 < 113: for k in 77:  4 vectors of 16: Y[64·g + …] += X[k, …]
        unroll v in 4: vector l in 16:   →   else:               for k in 77:  3 vectors of 16: Y[64·g + …] += X[k, …]
            if 64·g + 16·v + l < 113:                                          1 element:       Y[64·g + 48] += …
                Y[64·g + 16·v + l] += …

In: an IRModule of scheduled PrimFuncs in which a schedule marked loops with COLUMNS. Out: the same without blocks, the
marked loops written out for whole groups and for the last one. TVM would test every column, and so compute none of them
in vectors. Whoever compiles without this gets the same values, slowly.
"""

from __future__ import annotations

from typing import Any

from felixlike.lowering.marks import unmarked, with_marked_loops
from felixlike.lowering.rest import halves, piece

COLUMNS = "felixlike.columns"
"""Annotation of a loop around, or over, a group's unrolled vectors of columns, in which a test asks whether the column
exists.  Its value: columns of all groups together."""


def peel_columns(module: Any) -> Any:
    """The IRModule with tests around marked loops: functions without any are left alone."""
    return with_marked_loops(module, COLUMNS, lambda _: _whole_or_last, flat=True)


def _whole_or_last(loop: Any) -> Any:
    from felixlike import tvmlib
    from felixlike.tvmlib import tirx

    length, nest = int(loop.annotations[COLUMNS]), unmarked(loop)
    loops = (nest, *tvmlib.found(nest.body, tirx.For))
    lane = next(f for f in loops if f.kind == tirx.ForKind.VECTORIZED)
    vector = next((f for f in loops if f.kind == tirx.ForKind.UNROLLED), None)  # one vector needs no loop
    outer = lane if vector is None else vector
    lanes, width = int(lane.extent), int(lane.extent) * (1 if vector is None else int(vector.extent))
    test = lane.body

    def first(count: int) -> Any:
        body = test.then_case if vector is None else tvmlib.substituted(test.then_case, {vector.loop_var: 0})
        every = tirx.stmt_seq(*(piece(unmarked(lane, body), *part) for part in halves(0, count, lanes)))
        return tvmlib.structural_map(nest, (tirx.For, lambda f: every if f.loop_var.same_as(outer.loop_var) else f))

    last = {f.loop_var: int(f.extent) - 1 for f in (outer, lane)}
    return tirx.IfThenElse(tvmlib.substituted(test.condition, last), first(width), first(length % width))
