"""Packed constants are fetched while the block before them is in use.

    for row in 7:                          for row in 7:
        for c in 512:                          for c in 512:
            tile += x[…] · W[block, c, …]  →       prefetch the row-th seventh of W[block + 1, c, …]
                                                   tile += x[…] · W[block, c, …]

In: an IRModule of scheduled PrimFuncs in which a schedule marked reductions with `Prefetch`. Out: the same without
blocks, with instructions that fetch. The first pass over a block of weights has to wait for memory, all others find it
in the L2 cache; a network's weights do not stay in any cache from one call to the next. What fetches reads nothing and
so is allowed to point past the end.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Loop, Module, Stmt, TirExpr
from felixlike.codegen.annotations import Prefetch
from felixlike.codegen.passes.loop_tools import Change, number_of, unmarked, with_marked_loops
from felixlike.codegen.passes.memory_places import bytes_of, place_of, same_element

_LINE = 64
"""Bytes."""

_WORTH = 2**19
"""Bytes of an operand from which it is fetched: less than that stays in the caches by itself."""

STACK = 1024
"""Bytes: buffers of less TVM keeps on the stack."""

_L2 = 2
"""LLVM's word for it."""


def prefetch(module: Module) -> Module:
    """The IRModule with instructions that fetch ahead of marked loops: functions without any are left alone."""
    return with_marked_loops(module, Prefetch, _ahead)


def _ahead(func: Func) -> Change:
    loops = _tvm.found(func.body, _tvm.tirx.For)

    def ahead(loop: Loop) -> Stmt:
        around = [other for other in loops if _holds(other, loop)]  # innermost first
        loads = _once(_packed(loop, func.params)) if _on_stack(loop) else []
        fetches = [fetch for load in loads for fetch in _fetches(loop, around, load)]
        return unmarked(loop, _tvm.tirx.stmt_seq(*fetches, loop.body))

    return ahead


def _holds(outer: Any, inner: Any) -> bool:
    below = _tvm.found(outer.body, _tvm.tirx.For)
    return any(loop.loop_var.same_as(inner.loop_var) for loop in below)


def _on_stack(loop: Loop) -> bool:
    """Whether what a loop writes lies on the stack, where LLVM knows that what is fetched is something else: no other
    sums does it keep in registers from one step to the next."""
    return max(bytes_of(store.buffer) for store in _tvm.found(loop.body, _tvm.tirx.BufferStore)) < STACK


def _packed(loop: Loop, params: Any) -> list[Any]:
    """Loads of a parameter's elements in vectors."""
    lanes = [
        inner.loop_var for inner in _tvm.found(loop.body, _tvm.tirx.For) if inner.kind == _tvm.tirx.ForKind.VECTORIZED
    ]
    return [
        load
        for load in _tvm.found(loop.body, _tvm.ir.TensorLoad)
        if any(load.source.same_as(p) for p in params) and any(_tvm.uses(load.indices[-1], lane) for lane in lanes)
    ]


def _once(loads: list[Any]) -> list[Any]:
    """Without those that load what another one does."""
    found: list[Any] = []
    for load in loads:
        if not any(same_element(load, other) for other in found):
            found.append(load)
    return found


def _fetches(loop: Loop, around: list[Any], load: TirExpr) -> list[Any]:
    """What fetches, in each step of a pass over a block, its share of the next one; nothing where that cannot be told,
    or does not pay.  Where the share is less than a line, some steps fetch the same one."""
    buffer, steps = load.source, int(loop.extent)
    shape = [int(extent) for extent in buffer.shape]
    size = _tvm.bits(buffer.dtype) // 8
    inner: list[Any] = []
    for other in _tvm.found(loop.body, _tvm.tirx.For):  # where rows are written out, each has the same loops
        if not any(other.loop_var.same_as(f.loop_var) for f in inner):
            inner.append(other)
    place = place_of(buffer, load.indices)
    start = {f.loop_var: 0 for f in (loop, *inner)}
    first = _tvm.simplify(_tvm.substituted(place, start))
    slab = math.prod(int(f.extent) for f in inner if _tvm.uses(place, f.loop_var))
    stride = _tvm.simplify(_tvm.substituted(place, start | {loop.loop_var: 1}) - first)
    dense = isinstance(stride, _tvm.tirx.IntImm) and int(stride) == slab
    passes, block = _passes(around, first, steps * slab)
    if not dense or not passes or math.prod(shape) * size < _WORTH:
        return []
    number, line = number_of(passes), _LINE // size
    share = -(-slab // math.prod(int(f.extent) for f in passes))
    start = first + (block + number * (steps * share) + loop.loop_var * share)
    return [_fetch(buffer, start + n * line) for n in range(-(-share // line))]


def _passes(around: list[Any], first: Any, block: int) -> tuple[list[Any], int]:
    """The loops, outermost first, in which the same elements are read again, and how many these are.  around: the loops
    around, innermost first.  block: elements that one run of the loop reads."""
    found: list[Any] = []
    for loop in around:
        if loop.kind == _tvm.tirx.ForKind.PARALLEL:
            break
        if _tvm.uses(first, loop.loop_var):
            if found:
                break
            block *= int(loop.extent)
        elif int(loop.extent) > 1:
            found.insert(0, loop)
    return found, block


def _fetch(buffer: Buffer, place: TirExpr) -> Stmt:
    zeros = [0] * (len(buffer.shape) - 1)
    address = _tvm.tirx.address_of(buffer[(*zeros, place)])
    return _tvm.tirx.Evaluate(_tvm.tirx.call_intrin("void", "tirx.prefetch", address, 0, _L2, 1))
