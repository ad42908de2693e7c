"""Keep the operator that stacks many tensors in a kernel of its own, and transposed tensors out of all that stack.

    stack([h_1, …, h_15, sigmoid(g) · tanh(c)])      h_16 = sigmoid(g) · tanh(c), written once;
                                              →      stack([h_1, …, h_16]), a copy

TVM fuses the last step of a recurrent layer into the stack of all its steps, because nothing else reads it there. The
stack selects the source of an element by a chain of tests. Each is evaluated for every element, including what was
fused into it. For 16 steps of 8 × 512 numbers that took 180 µs, a third of the whole layer.

A large tensor that is transposed before it is joined to others would be read element by element across its rows. A
kernel of its own transposes it in registers.

A reshape before a contraction is a view unless it is fused into the kernel before it, where its divisions separate what
would be vectors: a stem's image, transposed and padded, took 148 µs instead of 20.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.isolate_broadcast_gates import behind_opaque, kernels_before
from felixlike.frontend.rewrites.rewriting import (
    INJECTIVE,
    OPAQUE,
    Bindings,
    Rewriter,
    elements,
    kernel_of,
    pattern_of,
    rewritten,
)

_MANY = 5
"""Minimum number of input tensors for which an operator without reductions is a stack.

No other TVM operator reads that many.
"""

_FEW = 2048
"""Number of output elements up to which another kernel would take longer. Chosen by hand."""

_LARGE = 2**15
"""Number of elements from which a tensor is transposed before it is joined to others. Chosen by hand."""


def with_stacks_apart(module: Any) -> Any:
    """Mark stacks as opaque, so that nothing is fused into them, and end fusion behind transposed parts of others.

    Fusion also ends before reshapes that contractions read.

    Args:
        module: Relax IRModule of annotated PrimFuncs that are not fused yet.

    Returns:
        The rewritten module.
    """
    module = _tvm.map_functions(module, lambda f: f.with_attr("op_pattern", OPAQUE) if _is_stack(f) else f)
    return rewritten(rewritten(module, _parts_apart), _views_apart)


def _is_stack(function: Any) -> bool:
    """Return whether a PrimFunc stacks at least `_MANY` tensors to more than `_FEW` elements."""
    if pattern_of(function) != INJECTIVE:
        return False
    shapes = [tuple(p.shape) for p in function.params if getattr(p, "shape", None) is not None]
    if len(shapes) <= _MANY:
        return False
    sizes = [int(size) if isinstance(size, _tvm.tirx.IntImm) else _FEW + 1 for size in shapes[-1]]
    return math.prod(sizes) > _FEW


def _parts_apart(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Insert an opaque reshape before each large transposed operand of a call that joins tensors."""
    kernel = kernel_of(rewriter.module, expression)
    if kernel is None or pattern_of(kernel) != INJECTIVE or len(expression.args[1].fields) < 2:
        return None
    parts = [
        (elements(operand.ty) or 0) >= _LARGE and _is_moved(rewriter.module, known, operand)
        for operand in expression.args[1].fields
    ]
    return behind_opaque(expression, parts, rewriter)


def _views_apart(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Insert an opaque reshape before the reshape of a large tensor that only contractions read."""
    kernel = kernel_of(rewriter.module, expression)
    operands = [] if kernel is None else expression.args[1].fields
    if len(operands) != 1 or not _tvm.relax.analysis.has_reshape_pattern(kernel):
        return None
    (operand,) = operands
    if (elements(operand.ty) or 0) < _LARGE:
        return None
    readers = [kernel_of(rewriter.module, reader) for reader in known.readers(known.variable(expression))]
    contracts = all(reader is not None and pattern_of(reader) > INJECTIVE for reader in readers)
    before = [pattern_of(one) for one in kernels_before(rewriter.module, known, operand, INJECTIVE)]
    fuses = bool(before) and max(before) <= INJECTIVE
    return behind_opaque(expression, [True], rewriter) if contracts and fuses else None


def _is_moved(module: Any, known: Bindings, expression: Any) -> bool:
    """Return whether a function that would be fused into the reader of an expression transposes rows."""
    kernels = kernels_before(module, known, expression, INJECTIVE)
    return any(pattern_of(kernel) == INJECTIVE and _moves_rows(kernel) for kernel in kernels)


def _moves_rows(kernel: Any) -> bool:
    """Return whether a PrimFunc reads the elements of its output's rows from different rows."""
    stores = _tvm.found(kernel.body, _tvm.tirx.BufferStore)
    loads = _tvm.found(kernel.body, _tvm.ir.TensorLoad)
    if len(stores) != 1 or len(loads) != 1 or not stores[0].indices:
        return False
    (store,), (load,) = stores, loads
    variables = [index for index in load.indices if isinstance(index, _tvm.tirx.Var)]
    return len(variables) == len(load.indices) and not load.indices[-1].same_as(store.indices[-1])
