"""Write tensors between kernels in bfloat16 where the products that read them would round them anyway.

    y = relu(conv(x))          →   y = float32(bfloat16(relu(conv(x))))          the rounding joins the kernel before
    z = conv'(y, W)                z = conv'(y, float32(bfloat16(W)))

Half as many bytes are moved, and products read their factors in place instead of copying and rounding them
(`bfloat16_factors.py`, which runs next). A tensor that a convolution and also operators between two tensors read, as
residual additions do, is rounded for them, too: they compute in float32. In transformers that would triple the error
and save little: BERT-base was off by 1.1 % instead of 0.4 %. Tensors that norms, softmax or others read, inputs and
outputs of the model stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.codegen.pair_functions import LANES
from felixlike.frontend.constants import LEAST_INFINITE, largest_finite
from felixlike.frontend.rewrites.bfloat16_factors import has_pairs
from felixlike.frontend.rewrites.even_channels import saved_by_pairs
from felixlike.frontend.rewrites.half_values import HALF, VIEWS, WIDE, is_half
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, constant, is_constant, operator, rewritten, shape
from felixlike.frontend.rewrites.sink_reshapes import BINARY, UNARY, with_late_reshapes
from felixlike.frontend.rewrites.winograd import LAYOUTS
from felixlike.hardware import FLOAT32, Precision

_LEAST_ROWS = 16
"""Rows of a product from which its factors are rounded: those with fewer take the time of loading their weights, which
alone are rounded then. Chosen by hand."""

_POOLS = {f"nn.max_pool{rank}d" for rank in (1, 2, 3)}
"""Operators whose results are rounded if their operands are."""

_MOVES = {"concat"}
"""Operators that only move elements of several tensors."""

_MATRIX, _IMAGE, _SUM, _OTHER = range(4)
"""What reads a tensor: a product of matrices or a convolution that rounds it, an operator between two tensors, or
another one."""


def with_narrow_tensors(module: Any, precision: Precision = FLOAT32, halves: Precision = FLOAT32) -> Any:
    """Round the tensors that products round, where they are computed.

    Args:
        module: Relax IRModule with operators.
        precision: Precision of products.
        halves: Precision in which products of bfloat16 tensors are computed, without rounding them.

    Returns:
        The rewritten module; the same one if the device multiplies no pairs, or products are not rounded.
    """
    if not (precision.is_reduced and halves.is_reduced):
        return module
    narrow = rewritten(module, partial(_narrow, precision=precision))
    return module if _tvm.structural_equal(narrow, module) else with_late_reshapes(narrow)


def with_own_conversions(module: Any) -> Any:
    """Let operators that read a float32 copy of a bfloat16 tensor compute it themselves.

    TVM would compute a copy that several kernels read in a kernel of its own. Elementwise operators, concatenations and
    maxima of windows can compute it.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _with_own)


def _narrow(expression: Any, known: Bindings, rewriter: Rewriter, *, precision: Precision) -> Any:
    """Round an operator's result, or its constant factor, or both. Return None for no change."""
    product = _rounds(expression, known, precision) and _is_narrow(expression.args[0], known, precision)
    narrow = operator(expression) not in VIEWS and _is_narrow(known.variable(expression), known, precision)
    if not product and not narrow:
        return None
    if operator(expression) == "concat" and isinstance(known.value(expression.args[0]), _tvm.relax.Tuple):
        return _joined(expression, known, rewriter)
    arguments = [rewriter.new(argument) for argument in expression.args]
    if product:
        weights = _tvm.relax.const(expression.args[1].value.numpy(), HALF)
        arguments[1] = constant(weights.value.numpy().astype(WIDE))
    call = _tvm.relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
    if not narrow:
        return call
    half = rewriter.builder.emit(_tvm.relax.op.astype(rewriter.builder.emit(call), HALF))
    return _tvm.relax.op.astype(half, WIDE)


def _joined(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return the concatenation of tensors in bfloat16 as float32.

    If it joined float32 copies of them, each of these would be written by the kernel that computes the tensor.
    """
    op, builder = _tvm.relax.op, rewriter.builder
    parts = [rewriter.new(part) for part in known.value(expression.args[0]).fields]
    copies = [builder.lookup_binding(part) if isinstance(part, _tvm.relax.Var) else part for part in parts]
    halves = [
        copy.args[0] if _is_copy(copy) else builder.emit(op.astype(part, HALF))
        for part, copy in zip(parts, copies, strict=True)
    ]
    return op.astype(builder.emit(op.concat(halves, expression.attrs.axis)), WIDE)


def _is_narrow(factor: Any, known: Bindings, precision: Precision) -> bool:
    """Return whether the operator that computes a tensor, before any views, is to round it."""
    value = known.value(factor)
    while operator(value) in VIEWS:
        factor = value.args[0]
        value = known.value(factor)
    if factor is None or operator(value) in ("", "call_tir") or not _is_wide(factor) or is_half(factor, known):
        return False  # no rounding is fused behind a kernel that other rewrites have made
    uses = set(_uses(factor, known, precision))
    return bool(uses) and (uses <= {_MATRIX, _IMAGE} or uses == {_IMAGE, _SUM})


def _is_wide(tensor: Any) -> bool:
    """Return whether an expression is a float32 tensor of known sizes."""
    if str(getattr(tensor.ty, "dtype", "")) != WIDE or getattr(tensor.ty, "shape", None) is None:
        return False
    return all(isinstance(size, int) for size in shape(tensor))


def _uses(variable: Any, known: Bindings, precision: Precision) -> Iterator[int]:
    """Yield what reads a tensor, directly or through views, concatenations and maxima, which may also be rounded."""
    for reader in known.readers(variable):
        result = known.variable(reader)
        if result is None:  # an output
            yield _OTHER
        elif operator(reader) in VIEWS or isinstance(reader, _tvm.relax.Tuple):
            yield from _uses(result, known, precision)
        elif operator(reader) in _MOVES | _POOLS:
            narrow = _is_narrow(result, known, precision)
            yield _IMAGE if narrow else _SUM if operator(reader) in _POOLS else _OTHER
        elif operator(reader) in BINARY:
            yield _SUM
        else:
            factor = _rounds(reader, known, precision) and reader.args[0].same_as(variable)
            yield (_MATRIX if operator(reader) == "matmul" else _IMAGE) if factor else _OTHER


def _rounds(call: Any, known: Bindings, precision: Precision) -> bool:
    """Return whether an expression is a float32 product with constant weights that is faster with rounded factors."""
    name = operator(call)
    if name not in ("matmul", *LAYOUTS) or str(call.ty.dtype) != WIDE or not is_constant(call.args[1]):
        return False
    if not has_pairs(call) or largest_finite(call.args[1]) >= LEAST_INFINITE:
        return False
    if name != "matmul":
        return saved_by_pairs(call, known, precision, FLOAT32) > 0
    *outer, columns = shape(call)
    static = len(shape(call.args[1])) == 2 and all(isinstance(size, int) for size in outer)
    return static and math.prod(outer) >= _LEAST_ROWS and columns >= LANES[-1]


def _with_own(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return an operator that reads copies of its own, or None if it shares none, or computes none itself."""
    is_pool = operator(expression) in _POOLS and expression.attrs.out_layout == expression.attrs.layout
    if is_pool and _is_copy(known.value(expression.args[0])):
        return _pooled(expression, rewriter.new(known.value(expression.args[0]).args[0]), rewriter)
    if operator(expression) not in (UNARY | BINARY | {"concat"}) - {"astype"}:
        return None
    changed = False

    def own(argument: Any) -> Any:
        nonlocal changed
        parts = known.value(argument)
        if isinstance(parts, _tvm.relax.Tuple):
            return _tvm.relax.Tuple([own(field) for field in parts.fields])
        if not _is_shared_copy(argument, known):
            return rewriter.new(argument)
        changed = True
        return rewriter.builder.emit(_tvm.relax.op.astype(rewriter.new(known.value(argument).args[0]), WIDE))

    arguments = [own(argument) for argument in expression.args]
    return _tvm.relax.Call(expression.op, arguments, expression.attrs, expression.ty_args) if changed else None


def _pooled(pool: Any, half: Any, rewriter: Rewriter) -> Any:
    """Return the maxima of a bfloat16 tensor's windows in float32. TVM would convert the tensor in another kernel."""
    attrs, dimensions = pool.attrs, operator(pool)[-2]

    def maxima(x: Any) -> Any:
        wide = _tvm.te.compute(x.shape, lambda *place: x(*place).astype(WIDE), name="wide")
        return getattr(_tvm.topi.nn, f"pool{dimensions}d")(
            wide,
            kernel=attrs.pool_size,
            stride=attrs.strides,
            dilation=attrs.dilation,
            padding=attrs.padding,
            pool_type="max",
            ceil_mode=attrs.ceil_mode,
            layout=attrs.layout,
        )

    return rewriter.builder.call_te(maxima, half, primfunc_name_hint=f"max_pool{dimensions}d")


def _is_shared_copy(argument: Any, known: Bindings) -> bool:
    """Return whether an argument is a float32 copy of a bfloat16 tensor that several operators read."""
    return _is_copy(known.value(argument)) and not known.once(argument)


def _is_copy(value: Any) -> bool:
    """Return whether an expression is the float32 copy of a bfloat16 tensor."""
    return operator(value) == "astype" and str(value.ty.dtype) == WIDE and str(value.args[0].ty.dtype) == HALF
