"""Evaluate an ONNX model without felixlike and TVM.

Input: a ModelProto. Output: an `Original`. The `onnx` package's reference evaluator works in NumPy. It gives float64
answers if the model's numbers are converted to float64. ONNX Runtime, where installed, gives the answer in the
model's own precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from felixlike.frontend.originals.original import moved_by_a_rounding


class OnnxOriginal:
    """Evaluate an ONNX model as its operators are specified."""

    exact = True

    def __init__(self, proto: Any) -> None:
        self._proto = proto
        initial = {tensor.name for tensor in proto.graph.initializer}
        self._inputs = [value.name for value in proto.graph.input if value.name not in initial]

    def name(self, *, wide: bool) -> str:
        """Return the name of the evaluator."""
        return "onnx.reference in float64" if wide else self._own[0]

    def memory(self, *, wide: bool) -> int:
        """Return the bytes of a copy's weights and of the evaluator's arrays."""
        weight_bytes = sum(_bytes(tensor) for tensor in self._proto.graph.initializer)
        return 4 * weight_bytes if wide else 2 * weight_bytes

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate the model.

        Weights are not perturbed.  Raises what the evaluator raises, which lacks some operators.
        """
        import torch

        tensors = [tensor.clone() for tensor in inputs]
        if wide:
            tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
        if moved is not None:
            moved_by_a_rounding(tensors, moved)
        arrays = {name: tensor.numpy() for name, tensor in zip(self._inputs, tensors, strict=True)}
        run = self._wide if wide else self._own[1]
        return [torch.from_numpy(_array(output)) for output in run(None, arrays)]

    @property
    def _wide(self) -> Callable[..., Any]:
        """Return the function that evaluates the model in float64."""
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(in_double_precision(self._proto)).run  # type: ignore[no-any-return]

    @cached_property
    def _own(self) -> tuple[str, Callable[..., Any]]:
        """Return name and function of the evaluator in the model's own precision."""
        from onnx.reference import ReferenceEvaluator

        try:
            import onnxruntime
        except ImportError:
            return "onnx.reference", ReferenceEvaluator(self._proto).run
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            self._proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return "ONNX Runtime", session.run


def in_double_precision(proto: Any) -> Any:
    """Return a copy of a ModelProto with float64 in place of all floats: weights, constants, casts and inputs."""
    import onnx
    from onnx import numpy_helper

    double = onnx.TensorProto.DOUBLE
    narrow = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    for graph in _graphs(copied.graph):
        for tensor in (*graph.initializer, *_constants(graph)):
            if tensor.data_type in narrow:
                wide = numpy_helper.to_array(tensor).astype("float64")
                tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in narrow:
                value.type.tensor_type.elem_type = double
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i in narrow:
                    attribute.i = double
    return copied


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and the graphs of its branches and loops."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def nodes_of(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs of its branches and loops."""
    for each in _graphs(graph):
        yield from each.node


def _constants(graph: Any) -> Iterator[Any]:
    """Yield the tensors in the attributes of a graph's nodes."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _array(value: Any) -> Any:
    """Return a writable copy. NumPy scalars become arrays."""
    import numpy as np

    return np.array(value)


def _bytes(tensor: Any) -> int:
    """Return the bytes of a TensorProto's values, wherever it keeps them."""
    import onnx

    return int(math.prod(tensor.dims)) * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
