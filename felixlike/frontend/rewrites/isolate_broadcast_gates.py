"""A sum that is spread over a larger tensor stays a kernel of its own: gates of channels are computed once.

    Y[y, x, c] = X[y, x, c] · sigmoid(Σ_k W[c, k] · S[k])   →   G[c] = sigmoid(Σ_k W[c, k] · S[k])
                                                                Y[y, x, c] = X[y, x, c] · G[c]

TVM calls every operator elementwise one of whose operands has as many elements as its result, and fuses all of them
behind sums; what suits a bias takes twenty times as long for the gate of a squeeze-and-excitation block. Between the
two a reshape to the same shape is put that nothing is fused to; at run time it is a view, which costs nothing.
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
    elements,
    kernel_of,
    pattern_of,
    rewritten,
)

_MANY = 4
"""Elements of the larger tensor for each of a gate's, from which a kernel more is worth it.  Chosen by hand."""


def with_gates_apart(module: Any) -> Any:
    """A module of annotated PrimFuncs, not yet fused, where nothing larger is fused behind a sum."""
    return rewritten(module, partial(_apart, module))


def _apart(module: Any, expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
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
        view = rewriter.builder.call_te(_same, new, primfunc_name_hint="gate") if gate else None
        arguments.append(new if view is None else rewriter.builder.emit(view))
    tuple_ = _tvm.relax.Tuple(arguments)
    return _tvm.relax.Call(expression.op, [callee, tuple_, *rest], expression.attrs, expression.ty_args)


def _is_small(operand: Any, count: int) -> bool:
    """Whether an operand is spread over so many elements."""
    size = elements(operand.ty)
    return size is not None and 0 < _MANY * size <= count


def _same(x: Any) -> Any:
    return _tvm.te.compute(x.shape, lambda *i: x(*i), name="gate")


def _is_sum(module: Any, known: Bindings, expression: Any) -> bool:
    """Whether something would be fused behind a sum if it was fused behind an expression."""
    value = known.value(expression)
    kernel = kernel_of(module, value)
    if kernel is None or pattern_of(kernel) > BROADCAST:
        return kernel is not None and pattern_of(kernel) == OUT_FUSIBLE
    size = elements(value.ty)
    return any(elements(o.ty) == size and _is_sum(module, known, o) for o in value.args[1].fields)
