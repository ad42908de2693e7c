"""Compute float16 and bfloat16 in float32, as PyTorch does on CPUs.

Input: the graph of an ExportedProgram. Output: the same graph, in which operators on float16 and bfloat16 take
float32 and round their results. Sums, products and exponentials then have float32's precision and range, and each
operator rounds once, as PyTorch's kernels do. Operators that only move elements are unchanged. The casts are fused
into adjacent kernels.
"""

from __future__ import annotations

from typing import Any

from felixlike.frontend.importers.promotion import cast

_MOVES = {
    *("_to_copy", "_unsafe_view", "alias", "as_strided", "cat", "clone", "constant_pad_nd", "contiguous", "detach"),
    *("embedding", "expand", "flip", "gather", "getitem", "index", "index_select", "lift_fresh_copy", "narrow"),
    *("permute", "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t"),
    *("transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "view", "where"),
    "run_by_pytorch",
}
"""Operators that only move elements, casts, and calls of PyTorch's kernels, which compute in their own precision."""

_TRANSPOSITIONS = ("permute", "transpose", "t", "expand", "view", "_unsafe_view", "unsqueeze")
"""Operators that are repeated on the widened operand, so that a transposed factor is still recognised."""


def in_single_precision(program: Any) -> None:
    """Make operators on float16 and bfloat16 work in float32. Modifies the program's graph."""
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
                if transposed:  # a cast in between would hide that a factor is transposed
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
        for result in [node, *parts]:
            if is_half(result):
                narrow = result.meta["val"].dtype
                result.meta["val"] = result.meta["val"].float()
                with graph.inserting_after(result):
                    rounded = cast(graph, result, narrow)
                result.replace_all_uses_with(rounded, delete_user_cb=lambda user, keep=rounded: user is not keep)
