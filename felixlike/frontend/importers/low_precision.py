"""Half types are computed in float32, as PyTorch does on CPUs.

In: the graph of an ExportedProgram. Out: the same graph, in which operators on float16 and bfloat16 take float32, and
what they give is rounded. Sums, products and exponentials then have float32's digits and reach, and each operator
rounds once, as PyTorch's kernels do. What only moves elements stays as it is; the casts become part of the kernels
around them.
"""

from __future__ import annotations

from typing import Any

from felixlike.frontend.importers.promotion import cast

_MOVES = {
    *("_to_copy", "_unsafe_view", "alias", "as_strided", "cat", "clone", "constant_pad_nd", "contiguous", "detach"),
    *("embedding", "expand", "flip", "gather", "getitem", "index", "index_select", "lift_fresh_copy", "narrow"),
    *("permute", "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t"),
    *("transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "view", "where"),
}
"""Operators that compute nothing, and casts."""

_TRANSPOSITIONS = ("permute", "transpose", "t", "expand", "view", "_unsafe_view", "unsqueeze")


def in_single_precision(program: Any) -> None:
    """Have operators on half types work in float32, in the graph of the program itself."""
    import torch

    halves = (torch.float16, torch.bfloat16)
    graph = program.graph
    wide: dict[Any, Any] = {}

    def name_of(node: Any) -> str:
        return str(getattr(node.target, "__name__", "")).partition(".")[0]

    def is_half(node: Any) -> bool:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        return isinstance(value, torch.Tensor) and value.dtype in halves

    def widened(node: Any) -> Any:
        if node not in wide:
            transposed = name_of(node) in _TRANSPOSITIONS and is_half(node.args[0])
            source = widened(node.args[0]) if transposed else node
            with graph.inserting_after(node):
                if transposed:  # factors are recognised as transposed where nothing stands between
                    wide[node] = graph.call_function(node.target, (source, *node.args[1:]), node.kwargs)
                    wide[node].meta = {**node.meta, "val": node.meta["val"].float()}
                else:
                    wide[node] = cast(graph, node, torch.float32)
        return wide[node]

    for node in list(graph.nodes):
        name = name_of(node)
        if node.op != "call_function" or name in _MOVES:
            continue
        for operand in node.all_input_nodes:
            if is_half(operand):
                node.replace_input_with(operand, widened(operand))
        if node.kwargs.get("dtype") in halves:
            node.update_kwarg("dtype", torch.float32)
        parts = [user for user in node.users if getattr(user.target, "__name__", "") == "getitem"]
        for given in [node, *parts]:
            if is_half(given):
                narrow = given.meta["val"].dtype
                given.meta["val"] = given.meta["val"].float()
                with graph.inserting_after(given):
                    rounded = cast(graph, given, narrow)
                given.replace_all_uses_with(rounded, delete_user_cb=lambda user, own=rounded: user is not own)
