"""Give outputs the strides that PyTorch's own have: channels last stays channels last.

In: an ExportedProgram of fixed sizes. Out: for each output the order in which its dimensions lie in memory. Compiled
code writes tensors row by row, so a program returns such outputs with their dimensions in that order, and the caller
gets a view of them.
"""

from collections.abc import Sequence
from typing import Any

Order = tuple[int, ...]
"""Dimensions from the slowest to the fastest one in memory; empty for a tensor that lies row by row."""


def memory_order(tensor: Any) -> Order:
    """The order of a tensor's dimensions in memory.

    Dimensions of one element stay where they are. Tensors some of whose elements share memory (stride 0) count as
    lying row by row, and so does a tensor that needs no other order, or whose sizes depend on values."""
    if not all(isinstance(number, int) for number in (*tensor.shape, *tensor.stride())):
        return ()
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return ()
    wide = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    sorted_dims = iter(sorted(wide, key=lambda dim: -tensor.stride(dim)))
    order = tuple(next(sorted_dims) if size > 1 else dim for dim, size in enumerate(tensor.shape))
    return () if order == tuple(range(len(order))) else order


def inverse(order: Order) -> Order:
    """The permutation that undoes another one."""
    return tuple(order.index(dim) for dim in range(len(order)))


def is_users(spec: Any) -> bool:
    """Whether an output is one that the model returns; others are new values of what it changes in place."""
    return spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")


def output_orders(program: Any) -> tuple[Order, ...]:
    """The memory order of each output that is a tensor, as PyTorch's own kernels leave it."""
    import torch

    nodes = zip(program.graph.output_node().args[0], program.graph_signature.output_specs, strict=True)
    values = [getattr(node, "meta", {}).get("val") for node, spec in nodes if is_users(spec)]
    return tuple(memory_order(value) for value in values if isinstance(value, torch.Tensor))


def with_outputs_in_memory_order(program: Any, orders: Sequence[Order]) -> None:
    """Return the outputs of a program that has only tensors as outputs with their dimensions in these orders."""
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
    """A node and an order whose permutation is what this order makes of this node: if it is a permutation of another
    one itself, both are one, or none."""
    import torch

    if node.target is not torch.ops.aten.permute.default:
        return node, order
    source, dims = node.args
    together = tuple(dims[dim] % len(dims) for dim in order)
    return source, () if together == tuple(range(len(together))) else together
