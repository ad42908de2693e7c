"""Write tensors between kernels in bfloat16 where the products that read them would round them anyway.

    y = relu(conv(x))          →   y = float32(bfloat16(relu(conv(x))))          the rounding joins the kernel before
    z = conv'(y, W)                z = conv'(y, float32(bfloat16(W)))

Half as many bytes are moved, and products read their factors in place instead of copying and rounding them
(`bfloat16_factors.py`, which runs next). Depthwise convolutions read it so, too, and compute in float32: they take the
time of moving it. A tensor that a convolution and also operators between two tensors read, as
residual additions do, is rounded for them, too: they compute in float32. In transformers that would triple the error
and save little: BERT-base was off by 1.1 % instead of 0.4 %. Tensors that norms, softmax or others read, inputs and
outputs of the model stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from typing import Any

from felixlike import _tvm
from felixlike.codegen.pair_functions import LANES
from felixlike.frontend.constants import LEAST_INFINITE, largest_finite
from felixlike.frontend.rewrites.bfloat16_factors import has_pairs
from felixlike.frontend.rewrites.even_channels import saved_by_pairs
from felixlike.frontend.rewrites.half_values import HALF, VIEWS, WIDE, is_half, is_widening
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, is_constant, operator, rewritten, shape
from felixlike.frontend.rewrites.sink_reshapes import BINARY, UNARY, with_late_reshapes
from felixlike.frontend.rewrites.winograd import is_channels_last
from felixlike.hardware import FLOAT32, Precision

_LEAST_ROWS = 16
"""Rows of a product from which its factors are rounded: those with fewer take the time of loading their weights, which
alone are rounded then. Chosen by hand."""

_POOLS = {f"nn.max_pool{rank}d" for rank in (1, 2, 3)}
"""Operators whose results are rounded if their operands are."""


class _Use(Enum):
    """How an operator reads a tensor."""

    PRODUCT = "a product of matrices that rounds it"
    CONVOLUTION = "a convolution that rounds it or takes the time of moving it, or what passes it on"
    SUM = "an operator between two tensors, or maxima of windows"
    OTHER = "all others"


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
    narrow = rewritten(module, _Narrowing(precision))
    return module if _tvm.structural_equal(narrow, module) else with_late_reshapes(narrow)


def with_own_conversions(module: Any) -> Any:
    """Let operators that read a float32 copy of a bfloat16 tensor compute it themselves.

    TVM would compute a copy that several kernels read in a kernel of its own. Elementwise operators, concatenations,
    maxima of windows and depthwise convolutions can compute it.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _with_own)


class _Narrowing:
    """A rule that rounds the results of operators, and constant factors. It decides once for each of them."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._rounded: dict[int | None, bool] = {}
        self._narrow: dict[int | None, bool] = {}

    def __call__(self, expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
        """Round an operator's result, or its constant factor, or both. Return None for no change."""
        product = self._rounds(expression, known) and self._is_narrow(expression.args[0], known)
        narrow = operator(expression) not in VIEWS and self._is_narrow(known.variable(expression), known)
        if not product and not narrow:
            return None
        if operator(expression) == "concat" and isinstance(known.value(expression.args[0]), _tvm.relax.Tuple):
            return _joined(expression, known, rewriter)
        arguments = [rewriter.new(argument) for argument in expression.args]
        if product:
            weights = _tvm.relax.const(expression.args[1].value.numpy(), HALF)
            arguments[1] = rewriter.builder.emit(_tvm.relax.op.astype(weights, WIDE))
        call = _tvm.relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
        if not narrow:
            return call
        half = rewriter.builder.emit(_tvm.relax.op.astype(rewriter.builder.emit(call), HALF))
        return _tvm.relax.op.astype(half, WIDE)

    def _is_narrow(self, factor: Any, known: Bindings) -> bool:
        """Return whether the operator that computes a tensor, before any views, is to round it."""
        value = known.value(factor)
        while operator(value) in VIEWS:
            factor = value.args[0]
            value = known.value(factor)
        key = _tvm.identity(factor)
        if key not in self._narrow:
            self._narrow[key] = self._gains(factor, value, known)
        return self._narrow[key]

    def _gains(self, tensor: Any, value: Any, known: Bindings) -> bool:
        """Return whether a tensor that is the value of an operator is rounded by what reads it, without much harm."""
        if tensor is None or operator(value) in ("", "call_tir"):
            return False  # no rounding is fused behind a kernel that other rewrites have made
        if str(getattr(tensor.ty, "dtype", "")) != WIDE or is_half(tensor, known):
            return False
        uses = set(self._uses(tensor, known))
        return bool(uses) and (uses <= {_Use.PRODUCT, _Use.CONVOLUTION} or uses == {_Use.CONVOLUTION, _Use.SUM})

    def _uses(self, variable: Any, known: Bindings) -> Iterator[_Use]:
        """Yield what reads a tensor, directly or through views, concatenations and maxima, which may be rounded."""
        for reader in known.readers(variable):
            result, name = known.variable(reader), operator(reader)
            if result is None:  # an output
                yield _Use.OTHER
            elif name in VIEWS or isinstance(reader, _tvm.relax.Tuple):
                yield from self._uses(result, known)
            elif name in {"concat"} | _POOLS and self._is_narrow(result, known):
                yield _Use.CONVOLUTION
            elif name in BINARY | _POOLS:
                yield _Use.SUM
            elif _is_depthwise(reader) and reader.args[0].same_as(variable):
                yield _Use.CONVOLUTION
            elif self._rounds(reader, known) and reader.args[0].same_as(variable):
                yield _Use.PRODUCT if name == "matmul" else _Use.CONVOLUTION
            else:
                yield _Use.OTHER

    def _rounds(self, call: Any, known: Bindings) -> bool:
        """Return whether an expression is a product with constant weights that is faster with rounded factors."""
        if not has_pairs(call) or str(call.ty.dtype) != WIDE or not is_constant(call.args[1]):
            return False
        key = _tvm.identity(call)
        if key not in self._rounded:
            plain = operator(call) == "matmul"
            saves = _is_large(call) if plain else saved_by_pairs(call, known, self._precision, FLOAT32) > 0
            self._rounded[key] = saves and largest_finite(call.args[1]) < LEAST_INFINITE
        return self._rounded[key]


def _is_large(product: Any) -> bool:
    """Return whether a product of matrices has enough rows, and columns that fill a vector."""
    *outer, columns = shape(product)
    return len(shape(product.args[1])) == 2 and math.prod(outer) >= _LEAST_ROWS and columns >= LANES[-1]


def _is_depthwise(call: Any) -> bool:
    """Return whether an expression is a convolution that multiplies no channels, as `_widened` computes it."""
    if not is_channels_last(call) or not is_constant(call.args[1]) or str(call.ty.dtype) != WIDE:
        return False
    outputs, inputs = shape(call.args[1])[:2]
    return inputs == 1 < int(call.attrs.groups) == outputs


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


def _with_own(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return an operator that reads copies of its own, or None if it shares none, or computes none itself."""
    is_pool = operator(expression) in _POOLS and expression.attrs.out_layout == expression.attrs.layout
    if is_pool and _is_copy(known.value(expression.args[0])):
        return _pooled(expression, rewriter.new(known.value(expression.args[0]).args[0]), rewriter)
    if _is_depthwise(expression) and _is_copy(known.value(expression.args[0])):
        return _widened(expression, rewriter.new(known.value(expression.args[0]).args[0]), rewriter)
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
        return getattr(_tvm.topi.nn, f"pool{dimensions}d")(
            _wide(x),
            kernel=attrs.pool_size,
            stride=attrs.strides,
            dilation=attrs.dilation,
            padding=attrs.padding,
            pool_type="max",
            ceil_mode=attrs.ceil_mode,
            layout=attrs.layout,
        )

    return rewriter.builder.call_te(maxima, half, primfunc_name_hint=f"max_pool{dimensions}d")


def _widened(convolution: Any, half: Any, rewriter: Rewriter) -> Any:
    """Return the depthwise convolution of a bfloat16 tensor in float32, which converts what it reads."""
    attrs = convolution.attrs

    def computed(x: Any, weights: Any) -> Any:
        return _tvm.topi.nn.conv(
            _wide(x),
            weights,
            stride=[*attrs.strides],
            padding=[*attrs.padding],
            dilation=[*attrs.dilation],
            groups=attrs.groups,
            data_layout=attrs.data_layout,
            kernel_layout=attrs.kernel_layout,
        )

    return rewriter.builder.call_te(
        computed, half, rewriter.new(convolution.args[1]), primfunc_name_hint=operator(convolution).removeprefix("nn.")
    )


def _wide(half: Any) -> Any:
    """Return a bfloat16 tensor of a PrimFunc in float32."""
    return _tvm.te.compute(half.shape, lambda *place: half(*place).astype(WIDE), name="wide")


def _is_shared_copy(argument: Any, known: Bindings) -> bool:
    """Return whether an argument is a float32 copy of a bfloat16 tensor that several operators read."""
    return _is_copy(known.value(argument)) and not known.once(argument)


def _is_copy(value: Any) -> bool:
    """Return whether an expression is the float32 copy of a bfloat16 tensor."""
    return is_widening(value) and str(value.ty.dtype) == WIDE
