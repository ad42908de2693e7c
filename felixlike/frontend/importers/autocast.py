"""Capture what a module computes under autocast.

`under_autocast` captures the autocast of the caller, as `torch.compile` does. Input: an nn.Module. Output: a module of
the same class and with the same tensors, whose `forward` runs under autocast. Exports and evaluations of it then have
autocast's casts, wherever they run. `restore_casts` adds those that PyTorch's decompositions lose.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from felixlike.errors import InvalidModel
from felixlike.frontend.importers.promotion import cast
from felixlike.frontend.importers.recurrent import RECURRENT

_PRODUCTS = {
    *("einsum.default", "inner.default", "linalg_matrix_power.default", "linalg_multi_dot.default"),
    *("rnn_relu_cell.default", "rnn_tanh_cell.default", "tensordot.default"),
}
"""Operators that consist of products, which autocast computes in its dtype, but that are not in autocast's own list."""


def under_autocast(model: Any, dtype: Any) -> Any:
    """Return a shallow copy of a module that runs under autocast for the CPU.

    Args:
        model: The nn.Module, which is left unchanged.
        dtype: Autocast's dtype.

    Raises:
        InvalidModel: The module has a `forward` of its own instead of its class's.
    """
    if "forward" in vars(model):
        raise InvalidModel(
            "its forward was replaced, so it cannot be captured under autocast",
            where=type(model).__name__,
            remedy="enable autocast in the model's forward instead of around this call",
        )
    cast = copy.copy(model)
    forward: Any = functools.partial(_cast_forward, cast, dtype)  # deep copies of the module run with their own tensors
    forward.__signature__ = inspect.signature(model.forward)
    cast.forward = forward
    return cast


def _cast_forward(module: Any, dtype: Any, *arguments: Any, **named: Any) -> Any:
    """Call a module's forward under autocast."""
    import torch

    with torch.autocast("cpu", dtype):
        return type(module).forward(module, *arguments, **named)


def restore_casts(program: Any) -> None:
    """Add the casts of autocast that PyTorch's decompositions lose: they are traced without autocast.

    Factors of products, as in `einsum`, are converted. Outputs of recurrent layers get the types that PyTorch's kernels
    give them. Which ones these are depends on the processor, so small layers are called.

    Args:
        program: An ExportedProgram, whose graphs are modified. What they compute in PyTorch stays the same.
    """
    for module, dtype in _regions(program.graph_module, None):
        for node in list(module.graph.nodes) if dtype is not None else ():
            name = getattr(node.target, "__name__", "")
            if name in RECURRENT:
                _convert_outputs(module.graph, node, _types(node, dtype))
            elif name in _PRODUCTS and node.meta["val"].dtype == dtype:
                _convert_inputs(module.graph, node, dtype)
        module.recompile()


def _convert_inputs(graph: Any, node: Any, dtype: Any) -> None:
    """Convert the float32 operands of a node."""
    import torch

    for operand in node.all_input_nodes:
        if operand.meta["val"].dtype == torch.float32:
            with graph.inserting_before(node):
                node.replace_input_with(operand, cast(graph, operand, dtype))


def _convert_outputs(graph: Any, node: Any, dtypes: Sequence[Any]) -> None:
    """Convert the outputs of a node that are not converted yet."""
    import torch

    for part in list(node.users):
        dtype = dtypes[part.args[1]]
        if part.meta["val"].dtype == dtype or all(
            user.target is torch.ops.aten._to_copy.default for user in part.users
        ):
            continue
        with graph.inserting_after(part):
            converted = cast(graph, part, dtype)
        part.replace_all_uses_with(converted, delete_user_cb=lambda user, keep=converted: user is not keep)


def _regions(module: Any, dtype: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the graph modules of a program and the dtype of autocast for the CPU in each, None without it."""
    yield module, dtype
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        inner = dtype
        if getattr(node.target, "__name__", "") == "wrap_with_autocast" and node.args[0] == "cpu":
            inner = node.args[1] if node.args[2] else None
        for operand in node.all_input_nodes:
            if operand.op == "get_attr" and hasattr(part := getattr(module, operand.target, None), "graph"):
                yield from _regions(part, inner)


def _types(layer: Any, dtype: Any) -> list[Any]:
    """Return the dtypes of the outputs of a recurrent operator under autocast, by a call for one step."""
    import torch

    def zeros(node: Any, *ones: int) -> Any:
        """Return zeros of a tensor's type and shape, whose dimensions `ones` are 1."""
        value = node.meta["val"]
        shape = [1 if place in ones else size for place, size in enumerate(value.shape)]
        return torch.zeros(shape, dtype=value.dtype)

    x, states, weights, *options = layer.args
    first = [zeros(s, 1) for s in states] if isinstance(states, list | tuple) else zeros(states, 1)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        return [part.dtype for part in layer.target(zeros(x, 0, 1), first, [zeros(w) for w in weights], *options)]
