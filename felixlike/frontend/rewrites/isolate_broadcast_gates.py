"""Keep a reduction that is broadcast to a larger tensor in a kernel of its own.

    Y[y, x, c] = X[y, x, c] · sigmoid(Σ_k W[c, k] · S[k])   →   G[c] = sigmoid(Σ_k W[c, k] · S[k])
                                                                Y[y, x, c] = X[y, x, c] · G[c]

Gates of channels are then computed once. TVM calls an operator elementwise if one of its operands has as many
elements as its result, and fuses it behind reductions. That suits a bias, but takes twenty times as long for the gate
of a squeeze-and-excitation block. A reshape to the same shape, which cannot be fused, is inserted between the two. At
runtime it is a view and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import (
    BROADCAST,
    OUT_FUSIBLE,
    Bindings,
    Rewriter,
    copy_of,
    elements,
    kernel_of,
    pattern_of,
    reached,
    rewritten,
)

_MANY = 4
"""Minimum ratio of the larger tensor's elements to the gate's for which another kernel is worthwhile.

Chosen by hand.
"""


def with_gates_apart(module: Any) -> Any:
    """Prevent fusion of larger functions behind reductions.

    Args:
        module: Relax IRModule of annotated PrimFuncs that are not fused yet.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _apart)


def _apart(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Insert an opaque reshape before each operand of an elementwise call that is a small reduction."""
    kernel = kernel_of(rewriter.module, expression)
    count = elements(expression.ty)
    if kernel is None or pattern_of(kernel) > BROADCAST or count is None:
        return None
    operands = expression.args[1].fields
    gates = [_is_small(operand, count) and _is_sum(rewriter.module, known, operand) for operand in operands]
    return behind_opaque(expression, gates, rewriter)


def behind_opaque(call: Any, apart: Sequence[bool], rewriter: Rewriter) -> Any:
    """Return a kernel's call with an opaque reshape before each marked operand, None if none is marked."""
    if not any(apart):
        return None
    callee, operands, *rest = call.args
    arguments = []
    for operand, marked in zip(operands.fields, apart, strict=True):
        new = rewriter.new(operand)
        arguments.append(rewriter.builder.emit(opaque(rewriter, new)) if marked else new)
    return _tvm.relax.Call(call.op, [callee, _tvm.relax.Tuple(arguments), *rest], call.attrs, call.ty_args)


def opaque(rewriter: Rewriter, value: Any) -> Any:
    """Return an opaque reshape of a value to its own shape, before which fusion ends."""
    return rewriter.builder.call_te(copy_of, value, "gate", primfunc_name_hint="gate")


def _is_small(operand: Any, count: int) -> bool:
    """Return whether an operand is broadcast to `count` elements from at most `count / _MANY`."""
    size = elements(operand.ty)
    return size is not None and 0 < _MANY * size <= count


def _is_sum(module: Any, known: Bindings, expression: Any) -> bool:
    """Return whether a function fused behind an expression would be fused behind a reduction."""
    return any(pattern_of(kernel) == OUT_FUSIBLE for kernel in kernels_before(module, known, expression, BROADCAST))


def kernels_before(module: Any, known: Bindings, expression: Any, most: int) -> Iterator[Any]:
    """Yield the kernel of an expression, and before kernels of kinds up to `most` those of operands of equal size."""

    def operands(variable: Any) -> list[Any]:
        value = known.value(variable)
        kernel = kernel_of(module, value)
        if kernel is None or pattern_of(kernel) > most:
            return []
        size = elements(value.ty)
        return [operand for operand in value.args[1].fields if elements(operand.ty) == size]

    for variable in reached(expression, operands):
        kernel = kernel_of(module, known.value(variable))
        if kernel is not None:
            yield kernel
