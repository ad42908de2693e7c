"""Fold batch norms after convolutions into the convolutions' weights and biases.

    γ · (W ∗ x + b − μ) / √(σ² + ε) + β   =   (s · W) ∗ x + (s · (b − μ) + β)     with s = γ / √(σ² + ε) per channel

This saves a task and memory traffic. Convolutions of bfloat16 tensors keep their weights, which are bfloat16 too, and
the epilogue scales the sums instead. Depthwise ones, and those whose groups have no products of pairs, get float32
weights and read their input before it is rounded. It covers convolutions of every rank, plain and transposed, with and
without groups (TVM's own pass covers conv2d only). The weights are computed in float64 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike.frontend.rewrites.half_values import has_half_factors, has_paired_channels, unrounded
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, constant, is_constant, operator, rewritten, shape

_CONVOLUTIONS = {f"nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose")}

Array = npt.NDArray[np.float64]


def with_folded_batch_norms(module: Any) -> Any:
    """Remove the batch norms that follow convolutions with constant weights.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _folded)


def _folded(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace a batch norm's first output by a convolution with scaled weights plus a constant."""
    if not isinstance(expression, _tvm.relax.TupleGetItem) or int(expression.index) != 0:
        return None
    norm = known.value(expression.tuple_value)
    if operator(norm) != "nn.batch_norm" or not known.once(expression.tuple_value) or not known.once(norm.args[0]):
        return None
    convolution, bias = _with_bias(known.value(norm.args[0]), known)
    constants = [*norm.args[1:], *convolution.args[1:]] if operator(convolution) in _CONVOLUTIONS else []
    if not constants or not all(map(is_constant, constants)) or not _channels_first(convolution, norm):
        return None
    gamma, beta, mean, variance = map(_wide, norm.args[1:])
    scale = (gamma if norm.attrs.scale else 1.0) / np.sqrt(variance + float(norm.attrs.epsilon))
    shift = (beta if norm.attrs.center else 0.0) + scale * ((0.0 if bias is None else _wide(bias).reshape(-1)) - mean)
    dtype = str(convolution.ty.dtype)
    data, weights = rewriter.new(convolution.args[0]), convolution.args[1]
    ones = [1] * (len(shape(convolution)) - 2)
    halves = has_half_factors(convolution, known)
    exact = halves and has_paired_channels(convolution)
    if halves and not exact:
        data = rewriter.new(unrounded(convolution.args[0], known))
    if not exact:
        weights = constant(_scaled(convolution, scale).astype(dtype))
    call: Any = _tvm.relax.Call(convolution.op, [data, weights], convolution.attrs)
    if exact:
        factor = np.broadcast_to(scale, shift.shape).reshape(1, -1, *ones).astype(dtype)
        call = _tvm.relax.op.multiply(rewriter.builder.emit(call), constant(factor))
    return _tvm.relax.op.add(rewriter.builder.emit(call), constant(shift.reshape(1, -1, *ones).astype(dtype)))


def _with_bias(value: Any, known: Bindings) -> tuple[Any, Any]:
    """Return the convolution, and the constant per channel if `value` is its sum with one."""
    if operator(value) != "add" or not known.once(value.args[0]):
        return value, None
    channels = (1, shape(value)[1], *[1] * (len(shape(value)) - 2))
    bias = known.value(value.args[1])
    whole = known.value(bias.args[0]) if operator(bias) == "reshape" else bias
    fits = shape(value.args[1]) == channels and is_constant(whole)
    return (known.value(value.args[0]), whole) if fits else (value, None)


def _channels_first(convolution: Any, norm: Any) -> bool:
    """Return whether the layouts are PyTorch's and the norm is over the channels."""
    attrs = convolution.attrs
    weights = "IO" if operator(convolution).endswith("_transpose") else "OI"
    layouts = attrs.data_layout == attrs.out_layout and attrs.data_layout[:2] == "NC"
    return bool(layouts) and attrs.kernel_layout[:2] == weights and int(norm.attrs.axis) == 1


def _scaled(convolution: Any, scale: Array) -> Array:
    """Return the weights times a factor for each output channel."""
    weights = _wide(convolution.args[1])
    if not operator(convolution).endswith("_transpose"):
        return weights * scale.reshape(-1, *[1] * (weights.ndim - 1))
    groups, (inputs, outputs) = int(convolution.attrs.groups), weights.shape[:2]
    grouped = weights.reshape(groups, inputs // groups, outputs, -1)
    return (grouped * scale.reshape(groups, 1, outputs, 1)).reshape(weights.shape)


def _wide(constant: Any) -> Array:
    """Return a constant's values in float64."""
    return np.asarray(constant.value.numpy(), dtype=np.float64)
