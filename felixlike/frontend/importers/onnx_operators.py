"""Convert ONNX operators that TVM's importer lacks or converts incorrectly.

    LSTM(X, W, R, B)   →   products = X · Wᵀ + B, of all steps and directions
                           Y, Y_h, Y_c = kernel(products, R, h, c)

Input: TVM's values of a node's inputs, and its attributes. Output: the Relax value. Recurrent layers have the kernels
of PyTorch's (`recurrent.py`), so that their gates are put into PyTorch's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.errors import UnsupportedOperator
from felixlike.frontend.importers.pytorch_regions import pytorch_call
from felixlike.frontend.importers.recurrent import recurrent_layer
from felixlike.frontend.importers.recurrent_kernel import CELLS, Layer
from felixlike.frontend.importers.windows import Cover, has_few_terms, sum_of_windows
from felixlike.hardware import kind_of, target_device


@dataclass(frozen=True, slots=True)
class Converter:
    """A converter as TVM's importer looks it up.

    Attributes:
        convert: (version of ONNX's operators, block builder, inputs, attributes, parameters) → the Relax value.
    """

    convert: Callable[..., Any]

    def get_converter(self, version: int) -> Callable[..., Any]:
        """Return the converter of a version of ONNX's operators."""
        return partial(self.convert, version)


def converters(known: Mapping[str, Any], target: Any, where: str) -> dict[str, Converter]:
    """Return converters by operator.

    Args:
        known: TVM's converters.
        target: The TVM target of the run, or None.
        where: The model's name, for errors.
    """
    recurrent = {name: Converter(partial(_recurrent, name, target, where)) for name in ("LSTM", "GRU", "RNN")}
    changed = {name: Converter(partial(change, known[name], where)) for name, change in _CHANGED.items()}
    added = {name: Converter(partial(convert, where)) for name, convert in _ADDED.items()}
    return {**recurrent, **changed, **added}


def _sizes(tensor: Any) -> tuple[Any, ...]:
    """Return a tensor's sizes: numbers, or expressions of open ones."""
    return tuple(int(size) if isinstance(size, _tvm.tirx.IntImm) else size for size in tensor.ty.shape.values)


def _text(value: Any) -> str:
    """Return a text attribute, which TVM's importer reads as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Places of PyTorch's gates among ONNX's: i, f, g, o of i, o, f, c; r, z, n of z, r, h."""

_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
"""Activations of a direction by default."""

_SEQUENCE_LENGTHS, _PEEPHOLES = 4, 7
"""Places of optional inputs."""


def _recurrent(
    name: str, target: Any, where: str, _version: int, builder: Any, inputs: Any, attributes: Any, _params: Any
) -> Any:
    """Convert LSTM, GRU and RNN with their default activations, or ReLU for RNN."""
    op, emit = _tvm.relax.op, builder.emit

    def operand(place: int) -> Any:
        return inputs[place] if place < len(inputs) else None

    x, weights, of_h, bias, initial = (operand(place) for place in (0, 1, 2, 3, 5))
    states = [initial, operand(6)] if name == "LSTM" else [initial]
    batch_first = bool(attributes.get("layout", 0))
    direction = _text(attributes.get("direction", "forward"))
    directions = 2 if direction == "bidirectional" else 1
    activations = tuple(_text(each).lower() for each in attributes.get("activations", _ACTIVATIONS[name] * directions))
    kind = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_relu" if "relu" in activations else "rnn_tanh"}[name]
    usual = ("relu",) if kind == "rnn_relu" else _ACTIVATIONS[name]
    tensors = [tensor for tensor in (x, weights, of_h, bias, *states) if tensor is not None]
    unsupported = {
        "lengths of sequences": operand(_SEQUENCE_LENGTHS) is not None,
        "peepholes": name == "LSTM" and operand(_PEEPHOLES) is not None,
        "clip": "clip" in attributes,
        "other activations": activations != usual * directions,
        "input_forget": bool(attributes.get("input_forget", 0)),
        "linear_before_reset=0": name == "GRU" and not attributes.get("linear_before_reset", 0),
        "another type than float32": any(str(tensor.ty.dtype) != "float32" for tensor in tensors),
        "open sizes": any(not isinstance(size, int) for tensor in tensors for size in _sizes(tensor)),
        "a target that is no CPU": target is None or not kind_of(target).on_host,
    }
    _refuse(name, unsupported, where)
    first, second, _features = _sizes(x)
    length, batch = (second, first) if batch_first else (first, second)
    hidden = _sizes(of_h)[-1]
    rows = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in _ORDER[name]])

    def part(tensor: Any, number: int, begin: int = 0) -> Any:
        """Return the gates of a direction in PyTorch's order, from a row on."""
        own = emit(op.squeeze(emit(op.strided_slice(tensor, [0], [number], [number + 1])), [0]))
        return emit(op.take(own, _tvm.relax.const(rows + begin, "int64"), axis=0))

    biases = () if bias is None else (0, len(rows))
    own = [[part(weights, d), part(of_h, d), *(part(bias, d, begin) for begin in biases)] for d in range(directions)]
    zeros = _tvm.relax.const(np.zeros((directions, batch, hidden), "float32"))
    swap = partial(op.permute_dims, axes=[1, 0, 2])
    started = [zeros if state is None else emit(swap(state)) if batch_first else state for state in states]
    layer = Layer(CELLS[kind], directions, length, batch, hidden, batch_first, target_device(target))
    backwards = direction == "reverse"
    time = 1 if batch_first else 0
    x = emit(op.flip(x, time)) if backwards else x
    y, *last = recurrent_layer(builder, layer, x, [tensor for each in own for tensor in each], started)
    y = emit(op.flip(y, time)) if backwards else y
    y = emit(op.reshape(y, (first, second, directions, hidden)))
    if batch_first:
        last = [emit(swap(state)) for state in last]
    else:
        y = emit(op.permute_dims(y, [0, 2, 1, 3]))
    return _tvm.relax.Tuple([y, *last])


def _transposed_convolution(
    known: Any, where: str, version: int, builder: Any, inputs: Any, attributes: Any, params: Any
) -> Any:
    """Convert ConvTranspose. TVM's converter ignores `output_shape`, which decides the padding."""
    if wanted := attributes.pop("output_shape", None):
        size, kernel = _sizes(inputs[0])[2:], _sizes(inputs[1])[2:]
        if not all(isinstance(each, int) for each in size):
            raise UnsupportedOperator(
                "ConvTranspose with output_shape needs sizes that are numbers", where=where, remedy=_GIVE_SIZES
            )
        strides, dilations = (attributes.get(name, [1] * len(size)) for name in ("strides", "dilations"))
        more = attributes.get("output_padding", [0] * len(size))
        all_sizes = zip(size, kernel, strides, dilations, more, wanted[-len(size) :], strict=True)
        total = [max(0, s * (n - 1) + extra + (k - 1) * d + 1 - out) for n, k, s, d, extra, out in all_sizes]
        upper = _text(attributes.pop("auto_pad", "NOTSET")) == "SAME_UPPER"
        begin = [pads // 2 if upper else pads - pads // 2 for pads in total]
        attributes["pads"] = [*begin, *(pads - first for pads, first in zip(total, begin, strict=True))]
    return known.get_converter(version)(builder, inputs, attributes, params)


def _resize(known: Any, where: str, version: int, builder: Any, inputs: Any, attributes: Any, params: Any) -> Any:
    """Convert Resize. TVM's converter takes the quotient of the sizes for the scales, which decide the places."""
    scales = inputs[2] if version > 10 and len(inputs) > 2 else inputs[1] if version <= 10 else None
    values = getattr(scales, "value", None)
    if values is not None:
        exact = [scale * size for scale, size in zip(values.numpy().tolist(), _sizes(inputs[0]), strict=True)]
        if any(abs(size - round(size)) > _ROUNDING * size for size in exact):
            raise UnsupportedOperator(
                "Resize to a fraction of an element is not supported",
                where=where,
                remedy="give scales that lead to whole sizes, or the sizes",
            )
    return known.get_converter(version)(builder, inputs, attributes, params)


def _mod(known: Any, _where: str, version: int, builder: Any, inputs: Any, attributes: Any, params: Any) -> Any:
    """Convert Mod. TVM's floor_mod of floats is off by a step where their quotient rounds up."""
    x, y = inputs
    if attributes.get("fmod", 0) or not str(x.ty.dtype).startswith("float"):
        return known.get_converter(version)(builder, inputs, attributes, params)
    op, emit = _tvm.relax.op, builder.emit
    zero = _tvm.relax.const(0, str(x.ty.dtype))
    rest = emit(op.mod(x, y))
    other_sign = emit(op.less(emit(op.multiply(op.sign(rest), op.sign(y))), zero))
    return op.where(other_sign, emit(op.add(rest, y)), rest)


_CHANGED = {"ConvTranspose": _transposed_convolution, "Mod": _mod, "Resize": _resize}
"""Converters that check or change what TVM's get."""


def _number_list(tensor: Any, what: str, where: str) -> list[int]:
    """Return the integers of a constant.  Raises UnsupportedOperator for another tensor."""
    value = getattr(tensor, "value", None)
    if value is None:
        raise UnsupportedOperator(f"{what} is no constant", where=where, remedy="export the model with a constant")
    return [int(number) for number in value.numpy().reshape(-1)]


def _product_so_far(where: str, _version: int, builder: Any, inputs: Any, attributes: Any, _params: Any) -> Any:
    """Convert CumProd."""
    op, emit = _tvm.relax.op, builder.emit
    x, axis = inputs
    (axis,) = _number_list(axis, "the axis of CumProd", where)
    backwards = bool(attributes.get("reverse", 0))
    x = emit(op.flip(x, axis)) if backwards else x
    y = emit(op.cumprod(x, axis, str(x.ty.dtype), exclusive=bool(attributes.get("exclusive", 0))))
    return op.flip(y, axis) if backwards else y


def _image_of_columns(where: str, _version: int, builder: Any, inputs: Any, attributes: Any, _params: Any) -> Any:
    """Convert Col2Im of images with few windows over each element."""
    x, image, block = inputs
    sizes, windows = (_number_list(t, "a size of Col2Im", where) for t in (image, block))
    count = len(sizes)
    pads = attributes.get("pads", [0] * 2 * count)
    dilations, strides = (attributes.get(name, [1] * count) for name in ("dilations", "strides"))
    dimensions = zip(sizes, windows, dilations, pads[:count], pads[count:], strides, strict=True)
    covers = [Cover.of(*dimension) for dimension in dimensions]
    shape = _sizes(x)
    unsupported = {
        "other images than of two dimensions": count != _ROWS_AND_COLUMNS,
        "open sizes": not all(isinstance(size, int) for size in shape),
        "many windows over each element": not has_few_terms(covers),
    }
    _refuse("Col2Im", unsupported, where)
    batch, rows, _ = shape
    return sum_of_windows(builder, x, covers, (batch, rows // math.prod(windows), *sizes))


_ROWS_AND_COLUMNS = 2
"""Dimensions of images that sums of windows are written for."""


def _fourier_transform(where: str, version: int, builder: Any, inputs: Any, attributes: Any, _params: Any) -> Any:
    """Convert DFT to a call of PyTorch's kernels."""
    op, emit = _tvm.relax.op, builder.emit
    x, shape, dtype = inputs[0], _sizes(inputs[0]), str(inputs[0].ty.dtype)
    length_of, axis_of = (inputs[place] if place < len(inputs) else None for place in (1, 2))
    axis = attributes.get("axis", 1) if version < _DFT_WITH_AXIS else -2
    if axis_of is not None:
        (axis,) = _number_list(axis_of, "the axis of DFT", where)
    axis, inverse = axis % len(shape), bool(attributes.get("inverse", 0))
    one_sided, is_real = bool(attributes.get("onesided", 0)), shape[-1] == 1
    unsupported = {
        "open sizes": not all(isinstance(size, int) for size in shape),
        "another type than float32 and float64": dtype not in ("float32", "float64"),
        "onesided for other than real inputs": one_sided and (inverse or not is_real),
    }
    _refuse("DFT", unsupported, where)
    (length,) = [shape[axis]] if length_of is None else _number_list(length_of, "the length of DFT", where)
    if length < shape[axis]:
        x = emit(op.strided_slice(x, [axis], [0], [length]))
    elif length > shape[axis]:
        x = _with_zeros(builder, x, axis, length - shape[axis])
    sizes = [*shape[:-1], 2]
    sizes[axis] = length // 2 + 1 if one_sided else length
    if one_sided:
        x = emit(op.squeeze(x, [-1]))
        calls = [["_fft_r2c.default", [{"result": 0}, [axis], 0, True], {}]]
    else:
        x = _with_zeros(builder, x, len(shape) - 1, 1) if is_real else x
        calls = [
            ["view_as_complex.default", [{"result": 0}], {}],
            ["_fft_c2c.default", [{"result": 1}, [axis], _BY_LENGTH if inverse else 0, not inverse], {}],
        ]
    calls.append(["view_as_real.default", [{"result": len(calls)}], {}])
    return pytorch_call(calls, [x], [(sizes, dtype)])


_DFT_WITH_AXIS = 20
"""The first version of ONNX's operators in which the axis of DFT is an input."""

_BY_LENGTH = 2
"""PyTorch's number for Fourier transforms that are divided by their length."""


def _with_zeros(builder: Any, x: Any, axis: int, count: int) -> Any:
    """Return a tensor with zeros behind it along an axis."""
    widths = [0] * 2 * len(_sizes(x))
    widths[2 * axis + 1] = count
    return builder.emit(_tvm.relax.op.nn.pad(x, widths))


def _refuse(name: str, unsupported: Mapping[str, bool], where: str) -> None:
    """Raise UnsupportedOperator if an operator has something that is not supported.  unsupported: by its words."""
    if found := [words for words, holds in unsupported.items() if holds]:
        raise UnsupportedOperator(
            f"{name} with {', '.join(found)} is not supported", where=where, remedy="export the model without it"
        )


_ADDED = {"Col2Im": _image_of_columns, "CumProd": _product_so_far, "DFT": _fourier_transform}
"""Converters of operators that TVM's importer lacks."""

_GIVE_SIZES = "pass shapes without open sizes"

_ROUNDING = 1e-5
"""Relative difference up to which a size is whole: scales are float32."""
