"""Convert PyTorch's recurrent operators to one product and one kernel a layer.

    lstm(x, states, weights)   →   for layer in layers:
                                       products = x · Wᵀ + b, of all steps and directions
                                       x, h, c = kernel(products, U, h, c)

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value. PyTorch's own decompositions
unroll the steps, so that a model grows with the length. They are used for operators that `recurrent_converters`
excludes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.frontend.constants import TERMS
from felixlike.frontend.importers.recurrent_kernel import CELLS, LAYER, Layer, kernel
from felixlike.hardware import FLOAT32, Device, kind_of, target_device

RECURRENT = {"lstm.input": "lstm", "gru.input": "gru", "rnn_tanh.input": "rnn_tanh", "rnn_relu.input": "rnn_relu"}
"""Kinds of cells by operator."""

_ARGUMENTS = 9
"""Number of arguments of these operators."""


def recurrent_converters(program: Any, target: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """Return converters by operator if all recurrent operators of an ExportedProgram can be converted, else none.

    This needs a CPU as target, float32 tensors of fixed sizes with at least one element, no dropout and no projections.
    """
    calls = [node for node in program.graph.nodes if node.op == "call_function" and _name(node.target) in RECURRENT]
    if not calls or target is None or not kind_of(target).on_host or not all(map(_is_supported, calls)):
        return {}
    return dict.fromkeys(RECURRENT, partial(_convert, device=target_device(target)))


def _name(target: Any) -> str:
    """Return the name of an operator without its namespace."""
    return str(getattr(target, "__name__", ""))


def _is_supported(node: Any) -> bool:
    """Return whether a recurrent operator can be converted."""
    import torch

    if node.kwargs or len(node.args) != _ARGUMENTS:
        return False
    x, states, weights, biased, layers, dropout, train, bidirectional, _ = _arguments(node)
    tensors = [tensor.meta["val"] for tensor in (x, *states, *weights)]
    if not all(tensor.dtype == torch.float32 for tensor in tensors):
        return False
    if not all(isinstance(size, int) and size > 0 for tensor in tensors for size in tensor.shape):
        return False
    count = layers * (2 if bidirectional else 1) * (4 if biased else 2)
    same_width = len({tensor.meta["val"].shape[-1] for tensor in states}) == 1
    return len(weights) == count and same_width and not (train and dropout)


def _arguments(node: Any) -> tuple[Any, ...]:
    """Return a node's arguments, with the states as a list."""
    x, states, *rest = node.args
    return (x, list(states) if isinstance(states, list | tuple) else [states], *rest)


def _convert(node: Any, importer: Any, *, device: Device) -> Any:
    """Convert aten.lstm, aten.gru, aten.rnn_tanh and aten.rnn_relu."""
    x, states, weights, biased, layers, _, _, bidirectional, batch_first = _arguments(node)
    op, emit, env = _tvm.relax.op, importer.block_builder.emit, importer.env
    first, second = x.meta["val"].shape[:2]
    length, batch = (second, first) if batch_first else (first, second)
    directions, hidden = 2 if bidirectional else 1, states[0].meta["val"].shape[-1]
    layer = Layer(CELLS[RECURRENT[_name(node.target)]], directions, length, batch, hidden, batch_first, device)
    y, last = env[x], []
    per_layer = directions * (4 if biased else 2)
    for number in range(layers):
        begin, end = number * directions, (number + 1) * directions
        own_states = [env[s] if layers == 1 else emit(op.strided_slice(env[s], [0], [begin], [end])) for s in states]
        own_weights = [env[weight] for weight in weights[number * per_layer : (number + 1) * per_layer]]
        y, *new = recurrent_layer(importer.block_builder, layer, y, own_weights, own_states)
        last.append(new)
    joined = [new[0] if layers == 1 else emit(op.concat([*new], 0)) for new in zip(*last, strict=True)]
    return emit(_tvm.relax.Tuple([y, *joined]))


def recurrent_layer(builder: Any, layer: Layer, x: Any, weights: Sequence[Any], states: Sequence[Any]) -> list[Any]:
    """Emit a layer.

    Args:
        builder: TVM's block builder.
        layer: The layer.
        x: The inputs of all steps.
        weights: For each direction those of the inputs and of h, and their biases if there are any, with PyTorch's
            order of gates.
        states: The first states, (direction, sequence, unit).

    Returns:
        The outputs of all steps and the last states.
    """
    op, emit = _tvm.relax.op, builder.emit
    each = len(weights) // layer.directions
    of_inputs, of_h, *biases = (weights[place::each] for place in range(each))
    features, columns = int(x.ty.shape.values[-1]), layer.directions * layer.tiles * layer.cell.gates * layer.width

    def packed(make: Callable[..., Any], *tensors: Any) -> Any:
        return emit(builder.call_te(partial(make, layer), *tensors, primfunc_name_hint=f"recurrent{make.__name__}"))

    rows = emit(op.reshape(x, (layer.batch * layer.length, features)))
    factor = emit(op.reshape(packed(_input_weights, *of_inputs), (features, columns)))
    products = emit(op.matmul(rows, factor, out_dtype="float32"))
    apart = []
    if biases:
        bias = emit(op.reshape(packed(_bias, *biases[0], *biases[1]), (columns,)))
        products = emit(op.add(products, bias))
    if layer.cell.apart is not None:
        none = _tvm.relax.const(np.zeros((layer.directions, layer.tiles, layer.width), "float32"))
        apart = [packed(_bias_apart, *biases[1]) if biases else none]

    def whole(*inputs: Any) -> Any:
        shapes, name = layer.output_shapes, layer.cell.name
        types = ["float32"] * len(shapes)
        return _tvm.te.extern(shapes, [*inputs], lambda ins, outs: kernel(layer, ins, outs), name, types)

    gates = emit(op.reshape(products, layer.gates_shape))
    operands = (gates, packed(_weights, *of_h), *apart, *states)
    call = builder.call_te(whole, *operands, primfunc_name_hint=f"{layer.cell.name}_layer")
    # The inputs of checks are scaled by this number, for factors that are all drawn. But h is about 1, so that its
    # weights must be smaller: otherwise states are chaotic, and rounding errors grow from step to step.
    func = builder.get()[call.args[0]].with_attr(TERMS, layer.hidden**2)
    if layer.device.precision != FLOAT32.name:
        func = func.with_attr(LAYER, layer.described)
    builder.update_func(call.args[0], func)
    result = emit(call)
    return [emit(_tvm.relax.TupleGetItem(result, index)) for index in range(len(layer.output_shapes))]


def _input_weights(layer: Layer, *tensors: Any) -> Any:
    """Compute the weights of the inputs (feature, direction, tile, gate, unit)."""
    shape = (tensors[0].shape[1], layer.directions, layer.tiles, layer.cell.gates, layer.width)
    return _tvm.te.compute(shape, lambda k, d, n, g, u: _packed(layer, tensors, d, n, g, u, k), name="packed")


def _weights(layer: Layer, *tensors: Any) -> Any:
    """Compute the weights of h (direction, tile, unit of h, gate, unit)."""
    shape = (layer.directions, layer.tiles, layer.hidden, layer.cell.gates, layer.width)
    return _tvm.te.compute(shape, lambda d, n, k, g, u: _packed(layer, tensors, d, n, g, u, k), name="packed")


def _bias(layer: Layer, *tensors: Any) -> Any:
    """Compute the sums of both biases (direction, tile, gate, unit), without those of h that are kept apart."""
    of_inputs, of_h = tensors[: layer.directions], tensors[layer.directions :]

    def value(d: Any, n: Any, g: Any, u: Any) -> Any:
        first, second = (_packed(layer, part, d, n, g, u) for part in (of_inputs, of_h))
        if layer.cell.apart is not None:
            second = _tvm.tirx.if_then_else(g == layer.cell.apart, _tvm.tirx.const(0, "float32"), second)
        return first + second

    return _tvm.te.compute((layer.directions, layer.tiles, layer.cell.gates, layer.width), value, name="packed")


def _bias_apart(layer: Layer, *tensors: Any) -> Any:
    """Compute the bias of h that is kept apart (direction, tile, unit)."""
    gate, shape = layer.cell.apart, (layer.directions, layer.tiles, layer.width)
    return _tvm.te.compute(shape, lambda d, n, u: _packed(layer, tensors, d, n, gate, u), name="packed")


def _packed(layer: Layer, tensors: Sequence[Any], d: Any, n: Any, gate: Any, column: Any, *rest: Any) -> Any:
    """Return an element of the tensor of a direction, whose rows are (gate, unit). Missing units have zeros."""
    unit = n * layer.width + column
    values = [tensor(gate * layer.hidden + unit, *rest) for tensor in tensors]
    value = values[0] if len(values) == 1 else _tvm.tirx.if_then_else(d == 0, *values)
    exact = layer.tiles * layer.width == layer.hidden
    return value if exact else _tvm.tirx.if_then_else(unit < layer.hidden, value, _tvm.tirx.const(0, "float32"))
