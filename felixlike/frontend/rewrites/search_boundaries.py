"""Find the bucket of each element by bisection, without branches.

    bucketize(x, b)   →   parallel part of x:
                              for i in part:
                                  p = 0
                                  for step in 2^m, …, 2, 1: p += step if b[p + step − 1] < x[i]
                                  y[i] = p

Input: Relax with operators. Output: the same with a kernel on CPUs. Elsewhere, and for dynamic sizes, the boundaries
before each element are counted. TVM's kernel branches at each step, which processors mispredict. It also places NaN
wrongly, which comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt, TirExpr
from felixlike.codegen.build import Builder, named, seq
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, shape

_FEWEST = 4
"""Boundaries from which on they are searched. Chosen by hand."""
_PART = 4096
"""Elements of an iteration of the parallel loop. Chosen by hand."""

_BUILD = Builder("int64", 1)


def with_searched_boundaries(module: Any, on_cpu: bool = False) -> Any:
    """Replace searches for buckets.

    Args:
        module: Relax IRModule with operators.
        on_cpu: Whether the module is compiled for a CPU.

    Returns:
        The rewritten module.
    """
    return rewritten(module, partial(_searched, on_cpu=on_cpu))


def _searched(call: Any, _: Bindings, rewriter: Rewriter, *, on_cpu: bool) -> Any:
    """Replace a call of bucketize."""
    if operator(call) != "bucketize":
        return None
    op, emit = _tvm.relax.op, rewriter.builder.emit
    values, boundaries = (rewriter.new(argument) for argument in call.args)
    right, dtype = bool(call.attrs.right), "int32" if call.attrs.out_int32 else "int64"
    sizes = shape(call.args[0])
    if on_cpu and all(isinstance(size, int) for size in (*sizes, *shape(call.args[1]))):
        count, elements = shape(call.args[1])[0], math.prod(sizes)
        if count >= _FEWEST and elements:
            flat = emit(op.reshape(values, (elements,)))
            kernel = partial(_kernel, right=right, dtype=dtype)
            found = emit(rewriter.builder.call_te(kernel, flat, boundaries, primfunc_name_hint="bucketize"))
            return op.reshape(found, sizes)
    values = emit(op.expand_dims(values, -1))
    behind = emit((op.greater if right else op.greater_equal)(boundaries, values))
    before = emit(op.astype(emit(op.logical_not(behind)), "int32"))
    return op.astype(emit(op.sum(before, -1)), dtype)


def _kernel(values: Any, boundaries: Any, *, right: bool, dtype: str) -> Any:
    """Return the TE tensor of the number of boundaries before each element."""
    inputs = (values, boundaries)
    reads = [_tvm.tirx.decl_buffer(x.shape, str(x.dtype), x.op.name) for x in inputs]  # which start at offset 0
    writes = _tvm.tirx.decl_buffer(values.shape, dtype, "buckets")
    whole = partial(_parts, right=right)
    return _tvm.te.extern([values.shape], inputs, whole, "bucketize", None, reads, [writes])


def _parts(inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, right: bool) -> Stmt:
    """Return the loop over parts of the elements."""
    (values, boundaries), (result,), tirx = inputs, outputs, _tvm.tirx
    elements, count = int(values.shape[0]), int(boundaries.shape[0])
    whole = 2 ** (count.bit_length() - 1)  # the boundaries are searched in a window of this length

    def element(i: Any) -> Stmt:
        value, bind = named("value", values[i])

        def before(place: Any) -> TirExpr:
            behind = boundaries[place] > value if right else boundaries[place] >= value
            return tirx.Not(behind).astype("int64")

        statements = [bind]
        # Loads of this buffer are opaque to TVM, which would write out each step in the next.
        position = _BUILD.cell("position", before(_BUILD.const(whole - 1)) * (count - whole), statements)

        def advance(distance: Any) -> Stmt:
            return tirx.BufferStore(position.source, position + distance, [_BUILD.const(0)])

        step = whole // 2
        while step:
            statements.append(advance(before(position + (step - 1)) * step))
            step //= 2
        last = position + before(position)
        return seq(*statements, tirx.BufferStore(result, last.astype(str(result.dtype)), [i]))

    size = min(elements, _PART)

    def part(number: Any) -> Stmt:
        start = number * size
        rest = _BUILD.const(elements) - start
        extent = size if elements % size == 0 else tirx.min(_BUILD.const(size), rest)
        return _BUILD.loop("i", extent, lambda i: element(start + i))

    return _BUILD.loop("part", -(-elements // size), part, "PARALLEL")
