"""Identify an exported model exactly: its graph, sizes, types, memory layouts and the values of its weights.

Input: the result of `export_model`. Output: a text that is equal only for models that compute the same, or None for a
model that cannot be identified, for example since it calls operators whose code may change between processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from felixlike.errors import InvalidModel
from felixlike.frontend.importers.randomness import random_operators
from felixlike.frontend.importers.torch import Exported
from felixlike.hardware import placement

_NAMESPACES = ("aten", "prims", "higher_order")
"""Namespaces of PyTorch's own operators. Others may be defined by the user's code."""


class _Unknown(Exception):
    """A part of a model cannot be identified."""


def fingerprint(exported: Exported) -> str | None:
    """Return the digest of everything that compiling a model depends on, 64 hexadecimal digits, or None.

    Args:
        exported: The exported model.
    """
    import torch

    hasher = hashlib.sha256()
    try:
        program = exported.program
        if exported.dynamic or random_operators(program, exported.name, allowed=exported.random):
            raise _Unknown
        for line in _lines(exported):
            hasher.update(f"{line}\n".encode())
        tensors = [*sorted(program.state_dict.items()), *sorted(program.constants.items())]
        if any(type(value) not in (torch.Tensor, torch.nn.Parameter) for _, value in tensors):
            raise _Unknown
        descriptions = [f"{name} {_tensor(value)}" for name, value in tensors]
        contents = placement.concurrently(_content, [value for _, value in tensors])
        for description, content in zip(descriptions, contents, strict=True):
            hasher.update(f"{description} {content}\n".encode())
    except (_Unknown, InvalidModel):
        return None
    return hasher.hexdigest()


def _lines(exported: Exported) -> Iterator[str]:
    """Yield the graph of a model and how it is called as text."""
    program, signature = exported.program, exported.program.graph_signature
    if any(spec.kind.name != "USER_OUTPUT" for spec in signature.output_specs):
        raise _Unknown
    yield repr((exported.name, exported.training, sorted(exported.made), exported.signature.to_json()))
    yield repr([(spec.kind.name, _argument_of(spec.arg), spec.target) for spec in signature.input_specs])
    yield repr([_argument_of(spec.arg) for spec in signature.output_specs])
    yield repr([_tree(program.call_spec.in_spec), _tree(program.call_spec.out_spec)])
    for name, module in program.graph_module.named_modules():
        if hasattr(module, "graph"):
            yield f"graph {name}"
            for node in module.graph.nodes:
                yield _node(node)


def _argument_of(argument: Any) -> tuple[str, Any]:
    """Return the kind and the name or the value of an argument of a signature."""
    kind = type(argument).__name__
    if kind == "TensorArgument":
        return kind, argument.name
    if kind == "ConstantArgument":
        return kind, (argument.name, _value(argument.value))
    raise _Unknown


def _tree(spec: Any) -> Any:
    """Return the nesting of arguments, with the classes' full names."""
    if spec.is_leaf():
        return "*"
    context = _value(spec.context) if not isinstance(spec.context, type) else _class(spec.context)
    return _class(spec.type), context, [_tree(child) for child in spec.children()]


def _class(value: Any) -> str:
    """Return the full name of a class."""
    return f"{value.__module__}.{value.__qualname__}"


def _node(node: Any) -> str:
    """Return a node of a graph as text, with the layers that it belongs to."""
    if node.op == "call_function" and getattr(node.target, "namespace", "") not in _NAMESPACES:
        if str(node.target) != "<built-in function getitem>":
            raise _Unknown
    elif node.op in ("call_module", "call_method"):
        raise _Unknown
    of_value = _of_value(node.meta.get("val"))
    layers = [tuple(map(str, entry)) for entry in node.meta.get("nn_module_stack", {}).values()]
    source = node.meta.get("torch_fn")
    parts = (node.op, node.name, str(node.target), _value(node.args), _value(node.kwargs), of_value, layers, source)
    return repr(parts)


def _of_value(value: Any) -> Any:
    """Return the sizes, types and strides of a node's result."""
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, list | tuple):
        return [_of_value(part) for part in value]
    return _value(value)


def _tensor(tensor: Any) -> tuple[Any, ...]:
    """Return the sizes, type, strides and device of a tensor."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized or tensor.is_neg():
        raise _Unknown
    sizes = (*tensor.shape, *tensor.stride())
    if not all(isinstance(size, int) for size in sizes):
        raise _Unknown
    return tuple(tensor.shape), str(tensor.dtype), tuple(tensor.stride()), str(tensor.device)


def _content(tensor: Any) -> str:
    """Return the hash of a tensor's values."""
    import torch

    return hashlib.sha256(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()


def _value(value: Any) -> Any:
    """Return a constant, or a nest of constants and nodes, as a value whose text identifies it."""
    import torch

    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if value is None or type(value) in (bool, int, float, str):
        return type(value).__name__, value
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, [_value(part) for part in value]
    if isinstance(value, dict):
        return [(_value(key), _value(part)) for key, part in value.items()]
    if isinstance(value, slice):
        return "slice", [_value(part) for part in (value.start, value.stop, value.step)]
    raise _Unknown
