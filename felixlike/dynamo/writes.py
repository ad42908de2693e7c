"""Find what a graph captured by TorchDynamo writes in place, by the names of its operators.

Input: a graph. Output: its writing nodes, what each writes to, and the inputs that they change. Writes that names do
not show, such as those of batch norm in training mode, are found when the graph is exported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from felixlike._util.torch_compat import storage_id
from felixlike.errors import InvalidModel

_FUNCTIONS = (
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "iand",
    "ior",
    "ixor",
    "ilshift",
    "irshift",
    "setitem",
)
"""Names of functions that change an argument in place, without a trailing underscore."""

_RESHAPING = (
    "as_strided_",
    "resize_",
    "resize_as_",
    "set_",
    "squeeze_",
    "swapaxes_",
    "swapdims_",
    "t_",
    "transpose_",
    "unsqueeze_",
)
"""Names of operators that change the shape of a tensor in place."""


def storage(node: Any) -> int | None:
    """Return an identifier of the memory of a node's value; None if it is not a dense tensor."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return storage_id(value)


def writes(node: fx.Node) -> bool:
    """Return whether a node may change a tensor in place."""
    name = _name(node)
    if node.op not in ("call_method", "call_function"):
        return False
    named = (name.endswith("_") and not name.endswith("__")) or name in _FUNCTIONS
    return named or _is_inplace(node) or node.kwargs.get("out") is not None


def _is_inplace(node: fx.Node) -> bool:
    """Return whether a node has a true argument `inplace`, by name or by position as that of LeakyReLU."""
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    place = None if isinstance(node.target, str) else _place_of_inplace(node.target)
    return place is not None and place < len(node.args) and bool(node.args[place])


@functools.cache
def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    """Return the index of a function's parameter `inplace`, None if it has none."""
    try:
        names = list(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # of a function in C
        return None
    return names.index("inplace") if "inplace" in names else None


def reshapes(node: fx.Node) -> bool:
    """Return whether a node changes the shape of a tensor in place."""
    return writes(node) and _name(node) in _RESHAPING


def written(node: fx.Node) -> Any:
    """Return the node whose value a writing node changes, which is also its result."""
    if node.kwargs.get("out") is not None:
        return node.kwargs["out"]
    return node.args[0] if node.args else node.kwargs.get("input")


def changed_inputs(graph: fx.GraphModule, inputs: Sequence[fx.Node]) -> set[int]:
    """Return the indices of the inputs that a graph changes, as far as names show.

    Args:
        graph: The graph.
        inputs: The nodes of its inputs.

    Raises:
        InvalidModel: It changes the shape of an input in place.
    """
    places = {storage(node): place for place, node in enumerate(inputs) if storage(node) is not None}
    changed = set()
    for node in filter(writes, graph.graph.nodes):
        place = places.get(storage(written(node)))
        if place is None:
            continue
        if reshapes(node):
            raise InvalidModel(
                f"it changes the shape of input {place} in place ({_name(node)})",
                where="graph",
                remedy="return the reshaped tensor as an output",
            )
        changed.add(place)
    return changed


def _name(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    name = node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))
    return name.partition(".")[0]  # without the overload, as in add_.Tensor
