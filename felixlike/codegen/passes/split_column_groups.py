"""Split loops over groups of columns, the last of which is smaller: a test around the loops, and whole vectors inside.

    for k in 77:                             if 64·g + 63 < 113: for k in 77:  4 vectors of 16: Y[64·g + …] += X[k, …]
        unroll v in 4: vector l in 16:   →   else:               for k in 77:  3 vectors of 16: Y[64·g + …] += X[k, …]
            if 64·g + 16·v + l < 113:                                          1 element:       Y[64·g + 48] += …
                Y[64·g + 16·v + l] += …

Input: an IRModule of scheduled PrimFuncs with loops annotated with `Columns`. Output: the same module without blocks,
with separate loops for whole groups and for the last one. TVM would test every column, and so would not vectorize.
Without this pass, code computes the same values, slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen.annotations import Columns
from felixlike.codegen.passes.loop_tools import like, unmarked, variable_like, with_marked_loops
from felixlike.codegen.passes.vectorize_tail import halves, piece


def peel_columns(module: Module) -> Module:
    """Return the IRModule with tests around annotated loops. Other functions are not changed."""
    return with_marked_loops(module, Columns, lambda _: _whole_or_last, flat=True)


def _whole_or_last(loop: Loop) -> Stmt:
    """Return the separate loops for whole groups and the last one."""
    mark = Columns.of(loop)
    length, lanes = mark.length, mark.lanes
    nest = unmarked(loop)
    loops = [nest]
    while isinstance(loops[-1].body, _tvm.tirx.For):
        loops.append(loops[-1].body)
    columns = [f for f in loops if f.kind in (_tvm.tirx.ForKind.UNROLLED, _tvm.tirx.ForKind.VECTORIZED)]
    test, flat = _flat(columns)

    def first(count: int) -> Stmt:
        every = _tvm.tirx.stmt_seq(*(piece(flat, *part) for part in halves(0, count, lanes)))
        place = columns[0].loop_var
        return _tvm.structural_map(nest, (_tvm.tirx.For, lambda f: every if f.loop_var.same_as(place) else f))

    width = int(flat.extent)
    if test is None:
        return first(width)
    return _tvm.tirx.IfThenElse(_tvm.substituted(test, {flat.loop_var: width - 1}), first(width), first(length % width))


def _flat(columns: Sequence[Loop]) -> tuple[Any, Any]:
    """Return the test of whether a column exists, or None, and one loop without the test over all columns.

    `columns` are the loops over columns, outermost first. Without a test, the outer loops' indices are computed as
    remainders, so that neighbours' indices cancel out.
    """
    lane = columns[-1]
    tested = isinstance(lane.body, _tvm.tirx.IfThenElse)
    number = variable_like(lane.loop_var)
    size, rest, values = prod(int(f.extent) for f in columns), number, {}
    stride = size
    for f in columns[:-1]:
        stride //= int(f.extent)
        values[f.loop_var] = 0 if tested else _tvm.tirx.floordiv(rest, like(number, stride)).astype(f.loop_var.ty.dtype)
        rest = rest if tested else rest - _tvm.tirx.floordiv(rest, like(number, stride)) * like(number, stride)
    values[lane.loop_var] = rest
    body = _tvm.substituted(lane.body, values)
    test, body = (body.condition, body.then_case) if tested else (None, _cancelled(body))
    return test, _tvm.tirx.For(number, like(number, 0), like(number, size), lane.kind, body)


def _cancelled(body: Stmt) -> Stmt:
    """Simplify integer sums in a statement. TVM would first split them, and then no longer find what cancels out."""

    def simple(node: Node) -> TirExpr:
        return _tvm.simplify(node) if str(node.ty.dtype).startswith("int") else node

    return _tvm.structural_map(body, (_tvm.tirx.Add, simple))
