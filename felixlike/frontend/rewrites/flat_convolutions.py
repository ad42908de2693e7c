"""Compute convolutions of narrow images as products of matrices, whose rows are the pixels of all lines.

    conv(x[n, h, w, c], 1 × 1 taps)   →   x[n · h · w, c] · W
    conv(x[n, h, w, c], r × s taps)   →   windows(x)[n · h · w, r · s · c] · W

A device that multiplies matrices has rows for 16 pixels, which lie at equal distances in memory: those of a line, of
which there are 7 in the last layers of networks for images. A product has all pixels as rows, and its weights are
loaded once, instead of once for each line. Windows of several taps are copied for that where there are many pixels, as
in a batch. With few, loading the weights takes the time, and the copies what the rest gains.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.frontend.rewrites.half_values import HALF
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, is_constant, rewritten, shape
from felixlike.frontend.rewrites.sink_reshapes import with_late_reshapes
from felixlike.frontend.rewrites.winograd import is_channels_last
from felixlike.hardware import Device, estimate, matrices

_GAIN = 1.25
"""Ratio of matrices from which a convolution becomes a product. Chosen by hand."""

_MANY_PIXELS = 256
"""Pixels from which windows of several taps are copied. With 49, four layers of ResNet-18 took as long as convolutions:
863 instead of 850 µs. No benchmark repeats that."""


def with_flat_convolutions(module: Any, device: Device) -> Any:
    """Make convolutions of bfloat16 tensors products where the device then multiplies fewer matrices.

    Args:
        module: Relax IRModule with operators.
        device: Device of the target.

    Returns:
        The rewritten module.
    """
    if not device.has_tiles:
        return module
    flat = rewritten(module, _product)
    return module if _tvm.structural_equal(flat, module) else with_late_reshapes(flat)


def _product(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return the product that a convolution is, or None if that does not pay."""
    if not _is_plain(expression):
        return None
    data, weights = expression.args
    (batch, *lines, columns, outputs), (*_, inputs) = shape(expression), shape(data)
    taps = shape(weights)[2:]
    rows, pixels = math.prod((batch, *lines)), math.prod((batch, *lines, columns))
    now, then = rows * (columns // matrices.fitting(columns)), -(-pixels // matrices.ROWS)
    if now < _GAIN * then:
        return None
    in_place = math.prod(taps) == 1 and shape(data)[:-1] == shape(expression)[:-1]
    copied = 0.0 if in_place else pixels * math.prod(taps) * inputs * estimate.COSTS.copied
    saved = (now - then) * math.prod(taps) * inputs * outputs
    if saved <= copied or (copied and math.prod(taps) > 1 and pixels < _MANY_PIXELS):
        return None
    op, steps = _tvm.relax.op, math.prod(taps) * inputs
    new = rewriter.new(data)
    if not in_place:
        windows = partial(_windows, expression, taps)
        new = rewriter.builder.emit(rewriter.builder.call_te(windows, new, primfunc_name_hint="windows"))
    rows_of_windows = rewriter.builder.emit(op.reshape(new, (pixels, steps)))
    moved = np.moveaxis(weights.value.numpy(), (0, 1), (-1, -2)).reshape(steps, outputs)
    matrix = _tvm.relax.const(np.ascontiguousarray(moved), HALF)
    product = rewriter.builder.emit(op.matmul(rows_of_windows, matrix, out_dtype=str(expression.ty.dtype)))
    return op.reshape(product, shape(expression))


def _is_plain(call: Any) -> bool:
    """Return whether an expression is a channels-last convolution of several bfloat16 channels with one group."""
    if not is_channels_last(call) or not is_constant(call.args[1]) or int(call.attrs.groups) > 1:
        return False
    return all(str(argument.ty.dtype) == HALF for argument in call.args) and shape(call.args[0])[-1] > 1


def _windows(convolution: Any, taps: tuple[int, ...], x: Any) -> Any:
    """Return the TE tensor [batch, lines …, taps …, channels] of all windows, with zeros around the image."""
    attrs, rank, sizes = convolution.attrs, len(taps), [int(n) for n in x.shape]
    strides, dilation = ([int(n) for n in numbers] for numbers in (attrs.strides, attrs.dilation))
    before, outer = [int(n) for n in attrs.padding][:rank], shape(convolution)[1:-1]

    def element(n: Any, *place: Any) -> Any:
        at, tests = [], []
        for d, size in enumerate(sizes[1:-1]):
            at.append(place[d] * strides[d] + place[rank + d] * dilation[d] - before[d])
            if before[d]:
                tests.append(at[d] >= 0)
            if (outer[d] - 1) * strides[d] + (taps[d] - 1) * dilation[d] - before[d] >= size:
                tests.append(at[d] < size)
        value = x(n, *at, place[-1])
        zero = _tvm.tirx.const(0, x.dtype)
        return _tvm.tirx.if_then_else(_tvm.tirx.all(*tests), value, zero) if tests else value

    return _tvm.te.compute((sizes[0], *outer, *taps, sizes[-1]), element, name="windows")
