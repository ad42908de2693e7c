"""Replace nodes of an ONNX model by their definitions, where TVM cannot import them.

    Attention(q, k, v)   →   MatMul, Softmax, MatMul, …

Input: a ModelProto and the names of the operators that the importer knows. Output: a ModelProto. Functions of the model
are written out, and so are operators that ONNX itself defines by others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from felixlike.frontend.originals.onnx_reference import nodes_of

_DOMAINS = ("", "ai.onnx", "com.microsoft")
"""Domains of operators that TVM's importer knows. It does not look at them."""

_DEPTH = 4
"""How often definitions are written out. ONNX's own need two rounds at most: SwiGLU contains Swish, which has a
definition.
"""


def with_functions_written_out(proto: Any, known: Collection[str]) -> Any:
    """Return a ModelProto without functions of the model and without operators that are not known, as far as possible.

    Args:
        proto: The ModelProto, which ONNX can serialise in memory. It is returned if nothing changes.
        known: Names of the operators that the importer knows.
    """
    import onnx
    from onnx import inliner

    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    for _ in range(_DEPTH):
        names = sorted({node.op_type for node in nodes_of(proto.graph) if _needs_definition(node, known)})
        if not names:
            break
        ids = [("", name) for name in names]
        typed = _typed(onnx, proto)
        _state_defaults(onnx, typed, names)
        try:
            proto = inliner.inline_selected_functions(typed, ids, inline_schema_functions=True)
        except RuntimeError:  # a definition that depends on types that ONNX cannot infer
            break
        del proto.graph.value_info[:]
    return proto


def _typed(onnx: Any, proto: Any) -> Any:
    """Return a ModelProto that states the types of all values, on which definitions may depend, weights included."""
    typed = onnx.shape_inference.infer_shapes(proto)
    stated = {value.name for value in (*typed.graph.input, *typed.graph.value_info)}
    for tensor in typed.graph.initializer:
        if tensor.name not in stated:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            typed.graph.value_info.append(value)
    return typed


def _state_defaults(onnx: Any, proto: Any, names: Collection[str]) -> None:
    """Add the default values of attributes to nodes, since ONNX writes out definitions without them."""
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    for node in nodes_of(proto.graph):
        if node.op_type in names and onnx.defs.has(node.op_type, node.domain):
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
            stated = {attribute.name for attribute in node.attribute}
            node.attribute.extend(
                each.default_value
                for name, each in schema.attributes.items()
                if name not in stated and each.default_value.type
            )


def operators_without_converter(graph: Any, known: Collection[str]) -> Iterator[str]:
    """Yield the names of operators that the importer cannot convert, with their domain if it is not ONNX's."""
    for node in nodes_of(graph):
        if node.domain not in _DOMAINS:
            yield f"{node.domain}.{node.op_type}"
        elif _needs_definition(node, known):
            yield node.op_type


def _needs_definition(node: Any, known: Collection[str]) -> bool:
    """Return whether a node cannot be imported as it is."""
    match node.domain, node.op_type:
        case "" | "ai.onnx", "Attention":  # TVM's is ONNX Runtime's operator of this name
            return True
        case _, "LayerNormalization":  # TVM's has no mean and no deviation
            return any(node.output[1:])
    return node.op_type not in known
