"""Give convolutions an even number of input channels, so that their products can be computed in pairs.

    conv(x[…, w, 3], 16 taps, stride 16)   →   conv(x[…, w / 16, 48], 1 tap, stride 1)        adjacent columns
    conv(x[…, w, 3], 7 taps, stride 2)     →   conv(pad(x)[…, w, 4], 7 taps, stride 2)        a channel of zeros
    conv(x[…, w, 4], 7 taps, stride 2)     →   conv(x[…, 4 · w, 1], 28 taps, stride 8)        long rows of matrices

`spaces/cpu/bfloat16_pairs.py` multiplies pairs of neighbouring channels. The stems of networks for images have three.
Columns that the stride never separates become channels by a reshape, which moves nothing. Other convolutions get one
more channel, whose weights are zeros too, if pairs save more than it costs. Where the device multiplies matrices, whose
rows have 16 pairs, few channels become columns: all taps of a line are then neighbours in memory, and one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.codegen.pair_functions import LANES
from felixlike.frontend.rewrites.half_values import WIDE, has_half_factors, has_paired_channels
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    constant,
    is_constant,
    rewritten,
    shape,
    with_attributes,
)
from felixlike.frontend.rewrites.split_deconvolution import is_transposed_last
from felixlike.frontend.rewrites.winograd import is_channels_last
from felixlike.hardware import FLOAT32, PAIRS_PRECISION, Precision, estimate, matrices

_GAIN = 0.85
"""Upper limit of the estimated time with a channel of zeros, as a fraction of the time in float32.

Chosen by hand, since the estimate ignores writing the padded tensor.
"""

_FEW = 16
"""Channels up to which those of all columns of a window become one axis: they fill half of a matrix's row at most."""


def with_even_channels(module: Any, precision: Precision = FLOAT32, halves: Precision = FLOAT32) -> Any:
    """Make the odd input channels of channels-last convolutions with constant weights even where pairs are multiplied.

    Args:
        module: Relax IRModule with operators.
        precision: Precision of products.
        halves: Precision in which products of bfloat16 tensors are computed, without rounding them.

    Returns:
        The rewritten module.
    """
    even = rewritten(module, partial(_even, precision=precision, halves=halves))
    multiplies_matrices = max(precision.times, halves.times) > PAIRS_PRECISION.times
    return rewritten(even, partial(_long, precision=precision, halves=halves)) if multiplies_matrices else even


def _even(expression: Any, known: Bindings, rewriter: Rewriter, *, precision: Precision, halves: Precision) -> Any:
    """Replace a convolution by one with an even number of input channels, or return None."""
    if not _may_have_pairs(expression) or shape(expression.args[0])[-1] % 2 == 0:
        return None
    saved = saved_by_pairs(expression, known, precision, halves)
    if saved > 0 and _has_whole_groups(expression):
        return _with_columns_as_channels(expression, rewriter)
    return _with_zeros(expression, rewriter) if saved > (1 - _GAIN) * _products(expression) else None


def _long(expression: Any, known: Bindings, rewriter: Rewriter, *, precision: Precision, halves: Precision) -> Any:
    """Replace a convolution of few input channels by one whose columns are channels, too, or return None.

    Strides and sizes in such columns are multiples of the channels' number. Pairs do not cross it, since it is even.
    """
    if not _may_have_pairs(expression) or saved_by_pairs(expression, known, precision, halves) == 0:
        return None
    exact = halves.is_reduced and has_half_factors(expression, known)
    attrs, channels = expression.attrs, shape(expression.args[0])[-1]
    taps = shape(expression.args[1])[-1]
    few = channels % 2 == 0 and channels <= _FEW and taps > 1
    if not few or int(attrs.groups) > 1 or int(attrs.dilation[-1]) > 1:
        return None
    if (halves if exact else precision).times <= PAIRS_PRECISION.times:
        return None
    weights = np.moveaxis(expression.args[1].value.numpy(), 1, -1)  # O, I, …, taps → O, …, taps, I
    weights = weights.reshape(*weights.shape[:-2], taps * channels)[:, None]
    return _with_columns(expression, rewriter, weights, lambda columns: columns * channels)


def saved_by_pairs(call: Any, known: Bindings, precision: Precision, halves: Precision) -> float:
    """Estimate the floating-point operations in the time that pairs save a convolution, 0 if it has none.

    Args:
        call: Any expression.
        known: Bindings of its function.
        precision: Precision of products.
        halves: Precision in which products of bfloat16 tensors are computed, without rounding them.
    """
    if not (_may_have_pairs(call) or _is_transposed(call)):
        return 0.0
    exact = halves.is_reduced and has_half_factors(call, known)
    times = (halves if exact else precision).times
    if times == 1 or (times > PAIRS_PRECISION.times and not _fills_matrices(call)):
        return 0.0
    data, products = shape(call.args[0]), _products(call)
    conversions = 0.0 if exact else 2 * math.prod(data) * estimate.COSTS.rounded
    padded = 1.0 if _is_transposed(call) or _has_whole_groups(call) else (data[-1] + data[-1] % 2) / data[-1]
    return max(0.0, products - padded * (products * _narrowness(call) / times + conversions))


def _fills_matrices(call: Any) -> bool:
    """Return whether a channels-last convolution has matrices that are faster than vectors in float32.

    The rows of one divide a line's pixels, and its pairs the input channels of a group, or all taps of a line if these
    are few (`spaces/cpu/matrix_tiles.py`).
    """
    columns, outputs = shape(call)[-2:]
    channels, taps = shape(call.args[1])[1], shape(call.args[1])[-1]
    if _is_transposed(call):
        columns, channels, taps = columns // int(call.attrs.strides[-1]), shape(call.args[1])[0], 1
    pairs = -(-channels // 2) * (taps if 1 < channels <= _FEW else 1) if channels > 1 else taps // 2
    rows, words = matrices.fitting(columns), matrices.fitting(max(pairs, 1))
    return outputs // int(call.attrs.groups) % LANES[-1] == 0 and matrices.pay(rows, words)


def _narrowness(call: Any) -> float:
    """Return the ratio of a full vector to those of a channels-last convolution, which lie within its groups.

    With channels first, vectors lie along columns, which fill them for any size of groups.
    """
    groups = int(call.attrs.groups)
    outputs = shape(call)[-1] // groups
    return 1.0 if groups == 1 else LANES[-1] / next(w for w in reversed(LANES) if outputs % w == 0)


def _may_have_pairs(call: Any) -> bool:
    """Return whether an expression is a channels-last float32 convolution with constant weights and paired channels."""
    if not is_channels_last(call) or not is_constant(call.args[1]) or str(call.ty.dtype) != WIDE:
        return False
    return has_paired_channels(call)


def _is_transposed(call: Any) -> bool:
    """Return whether an expression is a channels-last float32 transposed convolution of pairs of constant weights."""
    if not is_transposed_last(call) or not is_constant(call.args[1]) or str(call.ty.dtype) != WIDE:
        return False
    return shape(call.args[1])[0] % 2 == 0


def _products(call: Any) -> float:
    """Return the floating-point operations of a channels-last convolution."""
    strides = math.prod(int(s) for s in call.attrs.strides) if _is_transposed(call) else 1
    return 2.0 * math.prod(shape(call)[:-1]) * math.prod(shape(call.args[1])) / strides


def _has_whole_groups(call: Any) -> bool:
    """Return whether every window of a channels-last convolution consists of whole groups of as many columns as its
    last stride, with an even number of channels. Weights of zero for other columns would turn infinities into NaN.
    """
    attrs, (*_, size, channels), taps = call.attrs, shape(call.args[0]), shape(call.args[1])[-1]
    stride, before = int(attrs.strides[-1]), int(attrs.padding[len(attrs.strides) - 1])
    dilated = taps > 1 and int(attrs.dilation[-1]) != 1
    return not dilated and (stride * channels) % 2 == 0 and not any(n % stride for n in (size, taps, before))


def _with_columns_as_channels(call: Any, rewriter: Rewriter) -> Any:
    """Return the convolution whose channels are those of as many columns as its last stride."""
    stride, weights = int(call.attrs.strides[-1]), call.args[1].value.numpy()
    outputs, channels, *around, taps = weights.shape
    # O, I, …, groups, columns → O, columns, I, …, groups
    moved = np.moveaxis(weights.reshape(*weights.shape[:-1], taps // stride, stride), -1, 1)
    moved = moved.reshape(outputs, stride * channels, *around, taps // stride)
    return _with_columns(call, rewriter, moved, lambda columns: columns // stride)


def _with_columns(call: Any, rewriter: Rewriter, weights: Any, scaled: Callable[[int], int]) -> Any:
    """Return a convolution whose columns and channels are a reshape of the original ones.

    Args:
        call: The channels-last convolution.
        rewriter: The rewriter.
        weights: The new weights, whose input channels are those of the new columns.
        scaled: Returns the number of new columns for a number of the original ones.
    """
    attrs, (*outer, size, _) = call.attrs, shape(call.args[0])
    padding, channels = [int(n) for n in attrs.padding], weights.shape[1]
    data = rewriter.builder.emit(_tvm.relax.op.reshape(rewriter.new(call.args[0]), (*outer, scaled(size), channels)))
    last = len(padding) // 2 - 1
    padding = [scaled(n) if i in (last, len(padding) - 1) else n for i, n in enumerate(padding)]
    strides = [*(int(n) for n in attrs.strides[:-1]), scaled(int(attrs.strides[-1]))]
    return with_attributes(call, [data, constant(np.ascontiguousarray(weights))], strides=strides, padding=padding)


def _with_zeros(call: Any, rewriter: Rewriter) -> Any:
    """Return the convolution with a channel of zeros."""
    rank = len(shape(call))
    data = _tvm.relax.op.nn.pad(rewriter.new(call.args[0]), [0] * (2 * rank - 1) + [1])
    weights = np.pad(call.args[1].value.numpy(), [(0, int(axis == 1)) for axis in range(rank)])
    return with_attributes(call, [rewriter.builder.emit(data), constant(weights)])
