"""Compute float16 and bfloat16 in float32, as PyTorch does on CPUs.

Input: an ExportedProgram. Output: the same, with operators on float16 and bfloat16 that take float32 and round their
results. Sums, products and exponentials then have float32's precision and range, and each operator rounds once, as
PyTorch's kernels do. Operators that only move elements are unchanged. The casts are fused into adjacent kernels.

Results in bfloat16 are not rounded if one operator reads them, or if attention does, as in PyTorch's own kernel for it.
Outputs, factors of products and what several operators read stay bfloat16. That is at least as precise, and conversions
do not separate operators that are computed together. Results in float16 are all rounded: its range is smaller, and no
result may become finite that is infinite in PyTorch.
"""

from __future__ import annotations

from typing import Any

from felixlike.frontend.constants import HALF_FACTORS, OWN_ROUNDINGS
from felixlike.frontend.importers.graphs import graphs_of
from felixlike.frontend.importers.promotion import cast

_MOVES = {
    *("_to_copy", "_unsafe_view", "alias", "as_strided", "cat", "clone", "contiguous", "detach"),
    *("embedding", "expand", "flip", "gather", "getitem", "index", "index_select", "lift_fresh_copy", "narrow"),
    *("permute", "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t"),
    *("transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "view", "where"),
    *("cond", "run_by_pytorch"),
}
"""Operators that only move elements, casts, branches, whose graphs are converted themselves, and calls of PyTorch's
kernels, which compute in their own precision."""

_PADS = {"constant_pad_nd": 2, "pad": 3}
"""Operators that write a number around a tensor, with that argument's position. Zeros need no rounding."""

_VIEWS = {
    *("_unsafe_view", "alias", "clone", "contiguous", "expand", "permute", "reshape", "squeeze", "t", "transpose"),
    *("unsqueeze", "view"),
}
"""Operators of one tensor that only move or repeat its elements."""

_MOVED = _VIEWS | {"getitem", "select", "slice", "split", "split_with_sizes", "unbind"}
"""Operators that move elements of one tensor and may leave some out."""

_BATCHED = {"baddbmm", "bmm", "matmul"}
"""Products that attention consists of."""

_PRODUCTS = _BATCHED | {"addmm", "convolution", "mm"}
"""Operators that multiply tensors faster if they are bfloat16."""

_SOFTMAX = {"_safe_softmax", "_softmax", "softmax"}

_SCALES = {"div", "mul"}
"""Operators that scale factors of attention."""

_ELEMENTWISE = {"add", "bitwise_not", "clamp", "div", "logical_not", "masked_fill", "mul", "sub", "tanh", "where"}
"""Operators between the scores and the softmax of attention."""

_TRANSPOSITIONS = ("permute", "transpose", "t", "expand", "view", "_unsafe_view", "unsqueeze")
"""Operators that are repeated on the widened operand, so that a transposed factor is still recognised."""


def in_single_precision(program: Any) -> list[str]:
    """Make operators on float16 and bfloat16 work in float32. Modifies the program's graphs.

    Returns the attributes of the function: `HALF_FACTORS` if all attention multiplies factors that were bfloat16, and
    `OWN_ROUNDINGS`.
    """
    kinds = [_in_single_precision(graph) for graph in graphs_of(program)]
    in_halves = [factors for factors, _ in kinds if factors is not None]
    noted = {HALF_FACTORS: bool(in_halves) and all(in_halves), OWN_ROUNDINGS: any(rounds for _, rounds in kinds)}
    return [name for name, holds in noted.items() if holds]


def _in_single_precision(graph: Any) -> tuple[bool | None, bool]:
    """Make the operators of a graph work in float32.

    Returns whether all its attention multiplies factors that were bfloat16, None without attention, and whether it
    rounds tensors to bfloat16 itself.
    """
    import torch

    halves = (torch.float16, torch.bfloat16)
    wide: dict[Any, Any] = {}
    rounded: set[Any] = set()
    rounds = any(map(_rounds, graph.nodes))

    def is_half(node: Any) -> bool:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        return isinstance(value, torch.Tensor) and value.dtype in halves

    def widened(node: Any) -> Any:
        if node not in wide:
            transposed = _name(node) in _TRANSPOSITIONS and is_half(node.args[0])
            source = widened(node.args[0]) if transposed else node
            with graph.inserting_after(node):
                if transposed:  # a cast in between would hide that a factor is transposed
                    wide[node] = graph.call_function(node.target, (source, *node.args[1:]), node.kwargs)
                    wide[node].meta = {**node.meta, "val": node.meta["val"].float()}
                else:
                    wide[node] = cast(graph, node, torch.float32)
        return wide[node]

    for node in list(graph.nodes):
        name = _name(node)
        if node.op != "call_function" or name in _MOVES or (name in _PADS and not _padding(node)):
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
                    narrower = cast(graph, result, narrow)
                rounded.add(narrower)
                result.replace_all_uses_with(narrower, delete_user_cb=lambda user, keep=narrower: user is not keep)
    _remove_unread(graph)
    attention = _attention(graph)
    products = [node for node in attention if _name(node) in _BATCHED]
    in_halves = all(_had_halves(product, rounded) for product in products) if products else None
    for node in list(graph.nodes):
        if node.op == "call_function" and _is_cast(node) and node.meta["val"].dtype == torch.bfloat16:
            own = node in rounded  # a model's own conversions are left
            last = _round_late(graph, node)
            if own:
                _read_unrounded(last, attention)
    _remove_unread(graph)
    return in_halves, rounds


def _padding(pad: Any) -> Any:
    """Return the number that a pad writes, which may need a rounding; None for the default, 0."""
    position = _PADS[_name(pad)]
    return pad.args[position] if len(pad.args) > position else pad.kwargs.get("value")


def _name(node: Any) -> str:
    """Return the name of a node's operator, without its overload."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _remove_unread(graph: Any) -> None:
    """Remove casts and views that nothing reads."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and _name(node) in _VIEWS | {"_to_copy"}:
            graph.erase_node(node)


def _is_cast(node: Any) -> bool:
    """Return whether a node only converts floating-point numbers."""
    return _name(node) == "_to_copy" and bool(node.meta["val"].dtype.is_floating_point)


def _rounds(node: Any) -> bool:
    """Return whether a node of a model rounds a tensor to bfloat16 for operators in a wider type."""
    if node.op != "call_function" or not _is_cast(node) or not _is_half(node) or _is_half(node.args[0]):
        return False
    return any(_is_cast(reader) and not _is_half(reader) for reader in _reached(node, _users, _VIEWS))


def _attention(graph: Any) -> set[Any]:
    """Return the operators of attention: batched products before and after a softmax, and what scales their factors."""
    operators: set[Any] = set()
    for softmax in graph.nodes:
        if softmax.op == "call_function" and _name(softmax) in _SOFTMAX:
            scores = _reached(softmax, _inputs, _MOVED | _ELEMENTWISE)
            values = _reached(softmax, _users, _MOVED)
            products = {node for node in scores | values if _name(node) in _BATCHED}
            if products:
                operators |= {softmax, *products, *(node for node in scores if _name(node) in _ELEMENTWISE)}
            for product in products:
                operators |= {n for n in _reached(product, _inputs, _MOVED | _SCALES) if _name(n) in _SCALES}
    return operators


def _had_halves(product: Any, rounded: set[Any]) -> bool:
    """Return whether a product of attention has bfloat16 factors in the model.

    PyTorch's decomposition of `scaled_dot_product_attention` converts its inputs to float32. The kernel that it stands
    for multiplies bfloat16 numbers. Conversions that the model itself has are kept.
    """
    if any(user in rounded and _is_half(user) for user in product.users):
        return True
    casts = [node for node in _reached(product, _inputs, _MOVED | _SCALES) if _is_cast(node)]
    origins = [(n.meta.get("original_aten"), n.meta.get("torch_fn")) for n in casts if _is_half(n.args[0])]
    return any("scaled_dot_product" in str(origin) for origin in origins)


def _is_half(node: Any) -> bool:
    """Return whether a node is a tensor in bfloat16."""
    return str(getattr(node.meta.get("val"), "dtype", "")) == "torch.bfloat16"


def _reached(start: Any, following: Any, through: set[str]) -> set[Any]:
    """Return the operators that one is connected with by operators in `through` and casts, without others."""
    reached: set[Any] = set()
    pending = following(start)
    while pending:
        node = pending.pop()
        if node not in reached and node.op == "call_function":
            reached.add(node)
            if _name(node) in through or _is_cast(node):
                pending += following(node)
    return reached


def _inputs(node: Any) -> list[Any]:
    """Return the nodes that a node reads."""
    return list(node.all_input_nodes)


def _users(node: Any) -> list[Any]:
    """Return the nodes that read a node."""
    return list(node.users)


def _round_late(graph: Any, rounded: Any) -> Any:
    """Move a rounding behind the views that alone read it, so that the kernel before it writes them. Returns it."""
    while len(rounded.users) == 1:
        source, (view,) = rounded.args[0], rounded.users
        read, casts = rounded, [rounded]
        if _is_cast(view) and len(view.users) == 1:
            read, casts, (view,) = view, [rounded, view], view.users
        if _name(view) not in _VIEWS or view.args[0] is not read:
            break
        view.replace_input_with(read, source)
        rounded = _behind(graph, view, casts)
        for old in reversed(casts):
            graph.erase_node(old)
    return rounded


def _behind(graph: Any, view: Any, casts: list[Any]) -> Any:
    """Convert the result of a view as a chain of casts does, for all that reads it. Returns the first new cast."""
    readers, last, new = list(view.users), view, []
    view.meta = {**view.meta, "val": view.meta["val"].to(casts[0].args[0].meta["val"].dtype)}
    for old in casts:
        with graph.inserting_after(last):
            last = cast(graph, last, old.meta["val"].dtype)
        new.append(last)
    for reader in readers:
        reader.replace_input_with(view, last)
    return new[0]


def _read_unrounded(rounded: Any, attention: set[Any]) -> None:
    """Let operators read a result before it is rounded if they belong to attention, or if only one of them reads it."""
    moves, readers, pending = [], [], [rounded]
    while pending:
        node = pending.pop()
        for user in node.users:
            if user.op != "call_function":
                return
            if _name(user) in _MOVED or (_is_cast(user) and str(user.meta["val"].dtype) == "torch.float32"):
                moves.append(user)
                pending.append(user)
            elif str(getattr(node.meta["val"], "dtype", "")) != "torch.float32":
                return
            else:
                readers.append(user)
    alone = len(readers) == 1 and _name(readers[0]) not in _PRODUCTS
    if not readers or not (alone or all(user in attention for user in readers)):
        return
    rounded.replace_all_uses_with(rounded.args[0])
    for node in moves:
        if _is_cast(node):
            node.replace_all_uses_with(node.args[0])
        else:
            _widen(node)


def _widen(node: Any) -> None:
    """Note that the results of a node are float32."""
    value = node.meta["val"]
    wide = [part.float() for part in value] if isinstance(value, list | tuple) else value.float()
    node.meta = {**node.meta, "val": wide}
