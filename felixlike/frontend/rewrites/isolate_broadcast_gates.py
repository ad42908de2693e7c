"""Keep a reduction that is broadcast to a larger tensor in a kernel of its own.

    Y[y, x, c] = X[y, x, c] · sigmoid(Σ_k W[c, k] · S[k])   →   G[c] = sigmoid(Σ_k W[c, k] · S[k])
                                                                Y[y, x, c] = X[y, x, c] · G[c]

Gates of channels are then computed once. TVM calls an operator elementwise if one of its operands has as many
elements as its result, and fuses it behind reductions. That suits a bias, but takes twenty times as long for the gate
of a squeeze-and-excitation block. A reshape to the same shape, which cannot be fused, is inserted between the two. At
runtime it is a view and costs nothing.
"""

from __future__ import annotations

from functools import partial
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
    return rewritten(module, partial(_apart, module))


def _apart(module: Any, expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Insert an opaque reshape before each operand of an elementwise call that is a small reduction."""
    kernel = kernel_of(module, expression)
    count = elements(expression.ty)
    if kernel is None or pattern_of(kernel) > BROADCAST or count is None:
        return None
    callee, operands, *rest = expression.args
    gates = [_is_small(operand, count) and _is_sum(module, known, operand) for operand in operands.fields]
    if not any(gates):
        return None
    arguments = []
    for operand, gate in zip(operands.fields, gates, strict=True):
        new = rewriter.new(operand)
        arguments.append(rewriter.builder.emit(opaque(rewriter, new)) if gate else new)
    tuple_ = _tvm.relax.Tuple(arguments)
    return _tvm.relax.Call(expression.op, [callee, tuple_, *rest], expression.attrs, expression.ty_args)


def opaque(rewriter: Rewriter, value: Any) -> Any:
    """Return an opaque reshape of a value to its own shape, before which fusion ends."""
    return rewriter.builder.call_te(copy_of, value, "gate", primfunc_name_hint="gate")


def _is_small(operand: Any, count: int) -> bool:
    """Return whether an operand is broadcast to `count` elements from at most `count / _MANY`."""
    size = elements(operand.ty)
    return size is not None and 0 < _MANY * size <= count


def _is_sum(module: Any, known: Bindings, expression: Any) -> bool:
    """Return whether a function fused behind an expression would be fused behind a reduction."""

    def operands(variable: Any) -> list[Any]:
        value = known.value(variable)
        kernel = kernel_of(module, value)
        if kernel is None or pattern_of(kernel) > BROADCAST:
            return []
        size = elements(value.ty)
        return [operand for operand in value.args[1].fields if elements(operand.ty) == size]

    kernels = (kernel_of(module, known.value(variable)) for variable in reached(expression, operands))
    return any(kernel is not None and pattern_of(kernel) == OUT_FUSIBLE for kernel in kernels)
