"""A sum that is spread over a larger tensor stays a kernel of its own: gates of channels are computed once.

    Y[y, x, c] = X[y, x, c] · sigmoid(Σ_k W[c, k] · S[k])   →   G[c] = sigmoid(Σ_k W[c, k] · S[k])
                                                                Y[y, x, c] = X[y, x, c] · G[c]

TVM calls every operator elementwise one of whose operands has as many elements as its result, and fuses all of them
behind sums; what suits a bias takes twenty times as long for the gate of a squeeze-and-excitation block. Between the
two a reshape to the same shape is put that nothing is fused to; at run time it is a view, which costs nothing.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from felixlike import tvmlib
from felixlike.frontend.rewrites.rewriting import OPAQUE, OUT_FUSIBLE, Known, Rewriter, rewritten

_MANY = 4
"""Elements of the larger tensor for each of a gate's, from which a kernel more is worth it.  Chosen by hand."""

_BROADCAST = 1
"""TVM's patterns up to this one are fused behind sums."""


def with_gates_apart(module: Any) -> Any:
    """A module of annotated PrimFuncs, not yet fused, where nothing larger is fused behind a sum."""
    return rewritten(module, partial(_apart, module))


def _apart(module: Any, expression: Any, known: Known, rewriter: Rewriter) -> Any:
    kernel = _kernel(module, expression)
    if kernel is None or _pattern(kernel) > _BROADCAST:
        return None
    callee, arguments, *rest = expression.args
    count, new = _elements(expression), []
    for argument in arguments.fields:
        size = _elements(argument)
        small = bool(count and size and _MANY * size <= count)
        operand = rewriter.new(argument)
        if small and _is_sum(module, known, argument):
            view = rewriter.builder.call_te(_same, operand, primfunc_name_hint="gate")
            operand = rewriter.builder.emit(view)
        new.append(operand)
    if all(a.same_as(b) for a, b in zip(new, arguments.fields, strict=True)):
        return None
    return tvmlib.relax.Call(
        expression.op, [callee, tvmlib.relax.Tuple(new), *rest], expression.attrs, expression.ty_args
    )


def _same(x: Any) -> Any:
    return tvmlib.te.compute(x.shape, lambda *i: x(*i), name="gate")


def _is_sum(module: Any, known: Known, expression: Any) -> bool:
    """Whether something would be fused behind a sum if it was fused behind an expression."""
    value = known.value(expression)
    kernel = _kernel(module, value)
    if kernel is None or _pattern(kernel) == OUT_FUSIBLE:
        return kernel is not None
    operands = value.args[1].fields if _pattern(kernel) <= _BROADCAST else []
    return any(_elements(o) == _elements(value) and _is_sum(module, known, o) for o in operands)


def _kernel(module: Any, expression: Any) -> Any:
    """The PrimFunc that an expression calls; None where it is something else."""
    called = isinstance(expression, tvmlib.relax.Call) and expression.op.same_as(tvmlib.ir.Op.get("relax.call_tir"))
    return module[expression.args[0]] if called else None


def _pattern(kernel: Any) -> int:
    return int(kernel.attrs.get("op_pattern", OPAQUE)) if kernel.attrs else OPAQUE


def _elements(expression: Any) -> int:
    """Of a tensor; 0 where a call decides it, or there are several tensors."""
    sizes = getattr(getattr(expression.ty, "shape", None), "values", None)
    if sizes is None or not all(isinstance(size, tvmlib.tirx.IntImm) for size in sizes):
        return 0
    return math.prod(int(size) for size in sizes)
