"""Compute the parts of an ONNX model that do not depend on its inputs' values.

    y = Reshape(x, Concat(Shape(x)[:2], [-1]))   →   y = Reshape(x, [2, 3, -1])

Input: a ModelProto and the sizes of its inputs. Output: a ModelProto whose sizes are initializers. Nodes are computed
by `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST = 4096
"""Elements up to which a value is computed. Sizes, axes and masks of positions have fewer; weights stay as they are."""

_ROUNDS = 8
"""How often sizes are inferred. Further sizes may be known after some were computed."""

_NOT_COMPUTED = frozenset(["If", "Loop", "Scan", "Bernoulli", "Multinomial", "Dropout"])
"""Operators that are never computed: those with graphs, and those that draw. Others that draw begin with Random."""


def with_computed_sizes(proto: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return a ModelProto with small values that do not depend on those of the inputs as initializers.

    Args:
        proto: The ModelProto; it is not changed.
        shapes: Sizes of its inputs.
    """
    import onnx

    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    _fix(copied.graph, shapes)
    for _ in range(_ROUNDS):
        if not _compute(onnx, copied):
            break
    return copied


def _fix(graph: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write the sizes of inputs into a graph, and remove sizes that were inferred for others."""
    for value in graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    del graph.value_info[:]


def _compute(onnx: Any, proto: Any) -> bool:
    """Replace nodes whose inputs are known by their values. Return whether there were any."""
    graph = proto.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    sizes = _inferred(onnx, proto)
    kept, computed = [], {}
    for node in graph.node:
        values = _values(onnx, node, known, sizes, proto.opset_import)
        if values is None:
            kept.append(node)
            continue
        computed.update(values)
        known.update(values)
    results = {value.name for value in graph.output}
    if not computed or not results.isdisjoint(computed):
        return False
    graph.initializer.extend(computed.values())
    del graph.node[:]
    graph.node.extend(kept)
    return True


def _inferred(onnx: Any, proto: Any) -> dict[str, list[int]]:
    """Return the sizes of the values whose sizes are all numbers."""
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shape = value.type.tensor_type.shape
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in shape.dim):
            found[value.name] = [dim.dim_value for dim in shape.dim]
    return found


def _values(
    onnx: Any, node: Any, known: Mapping[str, Any], sizes: Mapping[str, Sequence[int]], opsets: Any
) -> dict[str, Any] | None:
    """Return the values of a node's outputs, or None if they are not known or too large."""
    import numpy as np

    if node.op_type in _NOT_COMPUTED or node.op_type.startswith("Random") or node.domain not in ("", "ai.onnx"):
        return None
    names = [name for name in node.input if name]
    if node.op_type in ("Shape", "Size") and names[0] in sizes and names[0] not in known:
        shape = tuple(sizes[names[0]])
        feeds: dict[str, Any] = {names[0]: np.broadcast_to(np.zeros((), "float32"), shape)}
    elif all(name in known and np.prod(known[name].dims) <= _MOST for name in names):
        feeds = {name: onnx.numpy_helper.to_array(known[name]) for name in names}
    else:
        return None
    outputs = [name for name in node.output if name]
    try:
        results = _run(onnx, node, feeds, outputs, opsets)
    except Exception:  # many kinds; what cannot be computed here remains for the importer, which names it
        return None
    if any(not isinstance(result, np.ndarray | np.generic) or np.size(result) > _MOST for result in results):
        return None
    arrays = zip(outputs, map(np.asarray, results), strict=True)
    return {name: onnx.numpy_helper.from_array(array, name) for name, array in arrays}


def _run(onnx: Any, node: Any, feeds: dict[str, Any], outputs: list[str], opsets: Any) -> list[Any]:
    """Compute one node."""
    from onnx.reference import ReferenceEvaluator

    declared = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
    given = [onnx.helper.make_empty_tensor_value_info(name) for name in feeds]
    graph = onnx.helper.make_graph([node], "node", given, declared)
    results: list[Any] = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets)).run(None, feeds)
    return results
