"""Give outputs the strides that PyTorch's outputs have, so that channels last stays channels last.

Input: an ExportedProgram. Output: the memory order of each output's dimensions. Compiled code writes
contiguous tensors, so a program returns such outputs with their dimensions in memory order, and the caller gets a
permuted view.
"""

from collections.abc import Sequence
from typing import Any

from felixlike._util.torch_compat import size_hint, viewed_argument

Order = tuple[int, ...]
"""Dimensions from the slowest to the fastest in memory. Empty for a contiguous (row-major) tensor."""


def memory_order(tensor: Any) -> Order:
    """Return the order of a tensor's dimensions in memory.

    Dimensions of size 1 keep their position. Tensors with elements that share memory (stride 0) and contiguous tensors
    have the empty order. Symbolic sizes count with their example's value; without one the order is empty.
    """
    hints = [size_hint(number) for number in (*tensor.shape, *tensor.stride())]
    numbers = [hint for hint in hints if hint is not None]
    if len(numbers) < len(hints):
        return ()
    sizes, strides = numbers[: tensor.dim()], numbers[tensor.dim() :]
    if any(stride == 0 and size > 1 for size, stride in zip(sizes, strides, strict=True)):
        return ()
    wide = [dim for dim, size in enumerate(sizes) if size > 1]
    sorted_dims = iter(sorted(wide, key=lambda dim: -strides[dim]))
    order = tuple(next(sorted_dims) if size > 1 else dim for dim, size in enumerate(sizes))
    return () if order == tuple(range(len(order))) else order


def inverse(order: Order) -> Order:
    """Return the inverse permutation."""
    return tuple(order.index(dim) for dim in range(len(order)))


def in_users_order(shape: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Return the sizes of an output as the model returns it, from its sizes in memory order."""
    return tuple(shape[dim] for dim in inverse(order)) or shape


def is_users(spec: Any) -> bool:
    """Return whether the model returns this output.

    Others are new values of inputs or buffers that it changes in place.
    """
    return spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")


def as_users(spec: Any) -> Any:
    """Return the specification of an output as one that the model returns."""
    import torch

    return torch.export.graph_signature.OutputSpec(torch.export.graph_signature.OutputKind.USER_OUTPUT, spec.arg, None)


def output_orders(program: Any) -> tuple[Order, ...]:
    """Return the memory order of each output tensor, as PyTorch's own kernels write it."""
    import torch

    nodes = zip(program.graph.output_node().args[0], program.graph_signature.output_specs, strict=True)
    values = [getattr(node, "meta", {}).get("val") for node, spec in nodes if is_users(spec)]
    return tuple(memory_order(value) for value in values if isinstance(value, torch.Tensor))


def output_roots(program: Any, inputs: Sequence[str]) -> tuple[int, ...]:
    """Return for each output that is not a constant the number of the node that it is, or that it is a view of.

    inputs: Names of the input tensors, whose numbers are their places. Other nodes have further numbers.
    """
    import torch

    numbers = {name: place for place, name in enumerate(inputs)}
    pairs = zip(program.graph.output_node().args[0], program.graph_signature.output_specs, strict=True)
    nodes = [node for node, spec in pairs if is_users(spec) and isinstance(node, torch.fx.Node)]
    return tuple(numbers.setdefault(_root(node).name, len(numbers)) for node in nodes)


def _root(node: Any) -> Any:
    """Return the node that computes the tensor that a node is, or may be, a view of."""
    while (viewed := viewed_argument(node)) is not None:
        node = viewed
    return node


def with_outputs_in_memory_order(program: Any, orders: Sequence[Order]) -> None:
    """Permute the outputs of a program to these memory orders. All outputs must be tensors. Modifies the program."""
    import torch

    output = program.graph.output_node()
    nodes = list(output.args[0])
    with program.graph.inserting_before(output):
        for place, (node, order) in enumerate(zip(nodes, orders, strict=True)):
            if not order:
                continue
            before, after = _unpermuted(node, order)
            if after:
                permuted = program.graph.call_function(torch.ops.aten.permute.default, (before, list(after)))
                permuted.meta["val"] = before.meta["val"].permute(after)
                before = permuted
            nodes[place] = before
    output.args = (tuple(nodes),)
    for spec, node in zip(program.graph_signature.output_specs, nodes, strict=True):
        spec.arg = type(spec.arg)(name=node.name)
    program.graph.eliminate_dead_code()


def _unpermuted(node: Any, order: Order) -> tuple[Any, Order]:
    """Return a node and an order whose permutation equals permuting the given node.

    If the node is itself a permutation, both are combined. The order is empty if they cancel.
    """
    import torch

    if node.target is not torch.ops.aten.permute.default:
        return node, order
    source, dims = node.args
    combined = tuple(dims[dim] % len(dims) for dim in order)
    return source, () if combined == tuple(range(len(combined))) else combined
