"""An ONNX model evaluated without felixlike and TVM: by the `onnx` package's reference evaluator, and by ONNX Runtime
where that is installed.

In: a ModelProto. Out: an `Original`. The evaluator works in NumPy, so it gives float64 answers where the model's
numbers are made float64. ONNX Runtime then gives the answer in the model's own precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from felixlike.frontend.originals.original import moved_by_a_rounding


class OnnxOriginal:
    """An ONNX model as its own operators define it."""

    exact = True

    def __init__(self, proto: Any) -> None:
        self._proto = proto
        initial = {tensor.name for tensor in proto.graph.initializer}
        self._inputs = [value.name for value in proto.graph.input if value.name not in initial]

    def name(self, *, wide: bool) -> str:
        """Say what an answer is from."""
        return "onnx.reference in float64" if wide else self._own[0]

    def memory(self, *, wide: bool) -> int:
        """Return the bytes of the weights of a copy, and of the arrays that the evaluator makes of them."""
        own = sum(len(tensor.raw_data) for tensor in self._proto.graph.initializer)
        return 4 * own if wide else 2 * own

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate. Weights are not moved.  Raises what the evaluator raises, which lacks some operators."""
        import torch

        tensors = [tensor.clone() for tensor in inputs]
        if wide:
            tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
        if moved is not None:
            moved_by_a_rounding(tensors, moved)
        given = {name: tensor.numpy() for name, tensor in zip(self._inputs, tensors, strict=True)}
        run = self._wide if wide else self._own[1]
        return [torch.from_numpy(_array(found)) for found in run(None, given)]

    @property
    def _wide(self) -> Callable[..., Any]:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(in_double_precision(self._proto)).run  # type: ignore[no-any-return]

    @cached_property
    def _own(self) -> tuple[str, Callable[..., Any]]:
        """What evaluates the model in its own precision, in words, and its function."""
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
    """Return a copy of a ModelProto whose float numbers are float64: weights, constants, conversions and inputs."""
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
    """A graph and those in its branches and loops."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _constants(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _array(found: Any) -> Any:
    """A copy that torch may write to; NumPy's scalars become arrays."""
    import numpy as np

    return np.array(found)
