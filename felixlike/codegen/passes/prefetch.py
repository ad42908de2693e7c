"""Prefetch packed constants while the previous block is in use.

    for row in 7:                          for row in 7:
        for c in 512:                          for c in 512:
            tile += x[…] · W[block, c, …]  →       prefetch the row-th seventh of W[block + 1, c, …]
                                                   tile += x[…] · W[block, c, …]

Input: an IRModule of scheduled PrimFuncs with reductions annotated with `Prefetch`. Output: the same module without
blocks, with prefetch instructions. The first pass over a block of weights has to wait for memory, all others find it in
the L2 cache. A network's weights do not stay in any cache from one call to the next. Prefetch instructions read
nothing, so their address may be past the end. Where a loop is also annotated with `Narrow` and reads each block only
once, elements a fixed distance ahead are prefetched: a core that loads narrow weights does not use the memory's
bandwidth otherwise. The same holds where matrices are multiplied and each block is read once or twice.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Stmt, TirExpr
from felixlike.codegen.annotations import Matrix, Narrow, Pairs, Prefetch
from felixlike.codegen.build import prefetched
from felixlike.codegen.passes.loop_tools import Change, number_of, unmarked, with_marked_loops
from felixlike.codegen.passes.memory_places import bytes_of, place_of, same_element

_LINE = 64
"""Bytes of a cache line."""

_LEAST_BYTES = 2**19
"""Bytes of an operand from which it is prefetched: smaller ones stay in the caches anyway."""

_DISTANCE = 1024
"""Bytes from what is read to what is prefetched if each block is read once. 1×4096×4096 on one core of Zen 3 takes 0.85
of the time; 2048 bytes are as good. float32 weights are slower with than without. No benchmark repeats that."""

_DISTANCE_OF_MATRICES = 2**14
"""The same for matrices. 49×4608×512, whose weights come from the last-level cache of two cores of Granite Rapids,
takes 0.70 of the time if each block is read once, and 0.93 instead of prefetching the next block if it is read twice.
Distances of 4, 8, 32 and 64 KiB are 8 % to 13 % worse. 128×768×3072, which is read four times, is slower that way. No
benchmark repeats that."""

_FEW_PASSES = 2
"""Passes over a block of matrices up to which elements at a fixed distance are prefetched, in each of them."""

STACK = 1024
"""Bytes from which TVM no longer keeps a buffer on the stack."""


def prefetch(module: Module) -> Module:
    """Return the IRModule with prefetch instructions in annotated loops. Other functions are not changed."""
    return with_marked_loops(module, Prefetch, _ahead)


def _ahead(func: Func) -> Change:
    """Return the replacement of annotated loops of a function."""
    loops = _tvm.found(func.body, _tvm.tirx.For)

    def ahead(loop: Loop) -> Stmt:
        outer_loops = [other for other in loops if _contains(other, loop)]  # innermost first
        kept = _in_matrices(loop) or _on_stack(loop)
        loads = _once(_packed(loop, func.params)) if kept else []
        fetches = [fetch for load in loads for fetch in _fetches(loop, outer_loops, load)]
        return unmarked(loop, _tvm.tirx.stmt_seq(*fetches, loop.body))

    return ahead


def _contains(outer: Any, inner: Any) -> bool:
    """Return whether a loop contains another."""
    below = _tvm.found(outer.body, _tvm.tirx.For)
    return any(loop.loop_var.same_as(inner.loop_var) for loop in below)


def _in_matrices(loop: Loop) -> bool:
    """Return whether a loop's sums are in tile registers, which prefetches do not change."""
    return any(map(Matrix.on, _tvm.found(loop.body, _tvm.tirx.For)))


def _on_stack(loop: Loop) -> bool:
    """Return whether a loop writes only buffers on the stack.

    LLVM knows that prefetches do not access the stack, and keeps only sums on it in registers from step to step.
    """
    return max(bytes_of(store.buffer) for store in _tvm.found(loop.body, _tvm.tirx.BufferStore)) < STACK


def _packed(loop: Loop, params: Any) -> list[Any]:
    """Return the loads of a parameter's elements in vectors."""
    lanes = [
        inner.loop_var for inner in _tvm.found(loop.body, _tvm.tirx.For) if inner.kind == _tvm.tirx.ForKind.VECTORIZED
    ]
    return [
        load
        for load in _tvm.found(loop.body, _tvm.ir.TensorLoad)
        if any(load.source.same_as(p) for p in params)
        and any(_tvm.uses(_lane_index(load, loop), lane) for lane in lanes)
    ]


def _lane_index(load: Any, loop: Loop) -> Any:
    """Return the index along vectors: the last one, or the one before it if the last one is along a pair."""
    last = load.indices[-1]
    pairs = [inner.loop_var for inner in _tvm.found(loop.body, _tvm.tirx.For) if Pairs.on(inner)]
    return load.indices[-2] if any(last.same_as(pair) for pair in pairs) else last


def _once(loads: list[Any]) -> list[Any]:
    """Return the loads without duplicates."""
    unique: list[Any] = []
    for load in loads:
        if not any(same_element(load, other) for other in unique):
            unique.append(load)
    return unique


def _fetches(loop: Loop, outer_loops: list[Any], load: TirExpr) -> list[Any]:
    """Return the prefetches of each step, which together cover the next block in a pass over the current one.

    If there is one pass over a narrow constant, or few over matrices, they cover the elements at a fixed distance. The
    list is empty if the next block is unknown or prefetching does not pay. If a step's share is less than a cache line,
    some steps prefetch the same line.
    """
    buffer, steps = load.source, int(loop.extent)
    shape = [int(extent) for extent in buffer.shape]
    size = _tvm.bits(buffer.dtype) // 8
    inner: list[Any] = []
    for other in _tvm.found(loop.body, _tvm.tirx.For):  # where rows are unrolled, each has the same loops
        if not any(other.loop_var.same_as(f.loop_var) for f in inner):
            inner.append(other)
    place = place_of(buffer, load.indices)
    start = {f.loop_var: 0 for f in (loop, *inner)}
    first = _tvm.simplify(_tvm.substituted(place, start))
    step_elements = math.prod(int(f.extent) for f in inner if _tvm.uses(place, f.loop_var))
    stride = _tvm.simplify(_tvm.substituted(place, start | {loop.loop_var: 1}) - first)
    dense = isinstance(stride, _tvm.tirx.IntImm) and int(stride) == step_elements
    passes, block = _passes(outer_loops, first, steps * step_elements)
    fixed = _fixed_distance(loop, passes) // size
    if not dense or not (passes or fixed) or math.prod(shape) * size < _LEAST_BYTES:
        return []
    distance, passes = (fixed, []) if fixed else (block, passes)
    pass_number, line = number_of(passes), _LINE // size
    share = -(-step_elements // math.prod(int(f.extent) for f in passes))
    start = first + (distance + pass_number * (steps * share) + loop.loop_var * share)
    zeros = [0] * (len(buffer.shape) - 1)
    return [prefetched(buffer[(*zeros, start + n * line)]) for n in range(-(-share // line))]


def _fixed_distance(loop: Loop, passes: list[Any]) -> int:
    """Return the bytes from what is read to what is prefetched if that does not depend on the next block, else 0."""
    if _in_matrices(loop):
        return _DISTANCE_OF_MATRICES if math.prod(int(f.extent) for f in passes) <= _FEW_PASSES else 0
    return _DISTANCE if Narrow.on(loop) and not passes else 0


def _passes(outer_loops: list[Any], first: Any, block: int) -> tuple[list[Any], int]:
    """Return the loops, outermost first, that read the same elements again, and the number of these elements.

    `outer_loops` are innermost first. `block` is the number of elements that one run of the loop reads.
    """
    repeating: list[Any] = []
    for loop in outer_loops:
        if loop.kind == _tvm.tirx.ForKind.PARALLEL:
            break
        if _tvm.uses(first, loop.loop_var):
            if repeating:
                break
            block *= int(loop.extent)
        elif int(loop.extent) > 1:
            repeating.insert(0, loop)
    return repeating, block
