"""Vectorize loops along rows of any length: whole vectors first, then the tail.

    for k in T: y[k] = exp(x[k])     →   for v in T // 16: vector l in 16: y[16·v + l] = exp(x[16·v + l])
                                         if T < 16: for k in T: y[k] = exp(x[k])
                                         else if T % 16: vector l in 16: y[T − 16 + l] = exp(x[T − 16 + l])

    for k in T: s = s + x[k]         →   vector l in 16: p[l] = 0
                                         for v in T // 16: vector l in 16: p[l] = p[l] + x[16·v + l]
                                         for k in T % 16: s = s + x[16·(T // 16) + k]
                                         s = s + the sum of p, in halves

Input: an IRModule of scheduled PrimFuncs with loops annotated with `Row`. Output: the same module without blocks, with
annotated loops in vectors where their bodies allow it. TVM vectorizes only loops of known length. Elements of the last
vector are computed twice, so the loop must not read what it writes. Without this pass, code computes the same values,
slowly, except that sums have another order.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen.annotations import Row
from felixlike.codegen.passes.loop_tools import (
    added,
    anew,
    like,
    reads,
    step_along,
    unmarked,
    variable_like,
    with_marked_loops,
)
from felixlike.codegen.passes.vectorize_tail import piece

_REDUCED = {"Add": 0.0, "Max": -math.inf, "Min": math.inf}
"""Initial partial results of each kind of reduction."""


def rows_in_vectors(module: Module) -> Module:
    """Return the IRModule with annotated loops in vectors. Other functions are not changed."""
    return with_marked_loops(module, Row, lambda _: _changed, flat=True)


def _changed(loop: Loop) -> Stmt:
    """Return the replacement of an annotated loop."""
    plain, lanes = unmarked(loop), Row.of(loop).lanes
    serial = _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, _tvm.tirx.ForKind.SERIAL, loop.body)
    store = loop.body
    extent = loop.extent
    short = isinstance(extent, _tvm.tirx.IntImm) and int(extent) < lanes
    if short or not isinstance(store, _tvm.tirx.BufferStore) or not _is_zero(loop.min):
        return plain
    step = _step(store.indices, loop)
    if step == 1 and _along(store.value, loop) and not reads(store.value, store.buffer):
        return _elements(serial, lanes)
    if step == 0:
        kind = type(store.value).__name__
        value = added(store) if kind in _REDUCED and "float" in str(store.buffer.dtype) else None
        if value is not None and _along(value, loop):
            return _reduction(serial, lanes, kind, value)
    return plain


def _elements(loop: Loop, lanes: int) -> Stmt:
    """Return whole vectors, and one that ends where the row does."""
    tirx, variable, extent = _tvm.tirx, loop.loop_var, loop.extent
    width, last = like(variable, lanes), piece(loop, extent - like(variable, lanes), lanes)
    if isinstance(extent, tirx.IntImm):
        return tirx.stmt_seq(_vectors(loop, lanes), *([last] if int(extent) % lanes else []))
    some = tirx.floormod(extent, width) > like(variable, 0)
    behind = tirx.IfThenElse(extent < width, anew(loop), tirx.IfThenElse(some, last, None))
    return tirx.stmt_seq(_vectors(loop, lanes), behind)


def _reduction(loop: Loop, lanes: int, kind: str, value: TirExpr) -> Stmt:
    """Return the loop with partial results in the lanes of a vector, which are joined in halves."""
    tirx, variable, store = _tvm.tirx, loop.loop_var, loop.body
    dtype, place = store.buffer.dtype, str(variable.ty.dtype)
    join = getattr(tirx, kind)
    partial = tirx.decl_buffer((lanes,), dtype, name="partial")

    def lane(count: int, body: Any) -> Stmt:
        number = variable_like(variable)
        return tirx.For(number, like(number, 0), like(number, count), tirx.ForKind.VECTORIZED, body(number))

    def at(buffer: Buffer, index: Any) -> Any:
        return tirx.BufferLoad(buffer, [index])

    initialized = lane(lanes, lambda n: tirx.BufferStore(partial, tirx.const(_REDUCED[kind], str(dtype)), [n]))
    vector_number = variable_like(variable)

    def summed(n: Any) -> Any:
        element = _tvm.substituted(value, {variable: vector_number * like(vector_number, lanes) + n})
        return tirx.BufferStore(partial, join(at(partial, n), element), [n])

    count = tirx.floordiv(loop.extent, like(variable, lanes))
    sums = tirx.For(vector_number, like(vector_number, 0), count, tirx.ForKind.SERIAL, lane(lanes, summed))
    halves, width = [], lanes // 2
    while width > 1:

        def half(n: Any, width: int = width) -> Any:
            return tirx.BufferStore(partial, join(at(partial, n), at(partial, n + like(variable, width))), [n])

        halves.append(lane(width, half))
        width //= 2
    whole = join(at(partial, tirx.const(0, place)), at(partial, tirx.const(1, place)))
    joined = tirx.BufferStore(store.buffer, join(tirx.BufferLoad(store.buffer, store.indices), whole), store.indices)
    return tirx.stmt_seq(tirx.AllocBuffer(partial), initialized, sums, _left_over(loop, lanes), *halves, joined)


def _vectors(loop: Loop, lanes: int) -> Stmt:
    """Return the loop over whole vectors."""
    width = like(loop.loop_var, lanes)
    return anew(loop, piece(loop, loop.loop_var * width, lanes), extent=_tvm.tirx.floordiv(loop.extent, width))


def _left_over(loop: Loop, lanes: int) -> Stmt:
    """Return the iterations after the last whole vector."""
    width = like(loop.loop_var, lanes)
    first = _tvm.tirx.floordiv(loop.extent, width) * width
    body = _tvm.substituted(loop.body, {loop.loop_var: first + loop.loop_var})
    return anew(loop, body, extent=_tvm.simplify(_tvm.tirx.floormod(loop.extent, width)))


def _step(indices: Any, loop: Loop) -> int | None:
    """Return the stride of one-dimensional indices along a loop, or None if unknown."""
    return step_along(indices[0], loop.loop_var) if len(indices) == 1 else None


def _along(value: TirExpr, loop: Loop) -> bool:
    """Return whether consecutive iterations read contiguous elements, or the same, without conditional loads."""
    loads = _tvm.found(value, _tvm.ir.TensorLoad)
    guarded = any("if_then_else" in str(call.op) for call in _tvm.found(value, _tvm.ir.Call))
    return not guarded and all(_step(load.indices, loop) in (0, 1) for load in loads)


def _is_zero(node: Node) -> bool:
    """Return whether a node is the constant 0."""
    return isinstance(node, _tvm.tirx.IntImm) and int(node) == 0
