"""Write a slice of a slice of a complex tensor in one operator.

Input: the graph of an ExportedProgram. Output: the same, in which `y[:, :, :m, :n] = v` copies `y` once. torch.export
makes an operator of each index, and each of them copies the slice that the one before it took.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_WRITES = ("slice_scatter.default", "as_strided_scatter.default")
"""Operators that change a slice of a copy of a tensor, which has the same strides."""

_UNREAD = ("slice_scatter.default", "slice.Tensor", "copy.default")
"""Operators that are removed if nothing reads them."""


class _Write(NamedTuple):
    """A write to a slice of a slice of a tensor.

    Attributes:
        target: The tensor.
        path: The arguments of the operators that take the slices, from the outer one on.
        value: The new value of the inner slice.
    """

    target: Any
    path: tuple[tuple[Any, ...], ...]
    value: Any


def join_writes(graph: Any) -> None:
    """Replace each write to a slice of a slice of a new complex tensor by one operator. Modifies the graph."""
    import torch

    for node in list(graph.nodes):
        write = _write(node)
        if len(write.path) < 2 or not _is_contiguous(write.target) or not _has_known_sizes(write):
            continue
        part = torch.empty(write.target.meta["val"].shape, device="meta")
        for arguments in write.path:
            part = torch.ops.aten.slice.Tensor(part, *arguments)
        with graph.inserting_before(node):
            joined = graph.call_function(
                torch.ops.aten.as_strided_scatter.default,
                (write.target, write.value, [*part.shape], [*part.stride()], part.storage_offset()),
            )
        joined.meta = node.meta
        node.replace_all_uses_with(joined)
    for node in reversed(list(graph.nodes)):
        if _name(node) in _UNREAD and not node.users:
            graph.erase_node(node)


def _write(node: Any) -> _Write:
    """Return the write that a node makes; one without a path if it makes none."""
    path: list[tuple[Any, ...]] = []
    target, value = node, node
    while _name(value) == "slice_scatter.default" and value.meta["val"].is_complex() and not value.kwargs:
        part, inner, *arguments = value.args
        if path and not _takes(part, target, path):
            break
        target = target if path else part
        path.append(tuple(arguments))
        value = inner
    if _name(value) == "copy.default" and _alike(*value.args[:2]):
        value = value.args[1]
    return _Write(target, tuple(path), value)


def _takes(part: Any, target: Any, path: list[tuple[Any, ...]]) -> bool:
    """Return whether a node is the slice of a tensor at a path."""
    for arguments in reversed(path):
        if _name(part) != "slice.Tensor" or part.args[1:] != arguments or part.kwargs:
            return False
        part = part.args[0]
    return part is target


def _has_known_sizes(write: _Write) -> bool:
    """Return whether all sizes and positions of a write are known."""
    values = [*write.target.meta["val"].shape, *(value for arguments in write.path for value in arguments)]
    return all(value is None or type(value) is int for value in values)


def _is_contiguous(node: Any) -> bool:
    """Return whether the value of a node is contiguous and alone in its memory, as a new tensor and its copies are.

    Operators such as FFTs are recorded with other strides than those that their kernels return.
    """
    while _name(node) in _WRITES:
        node = node.args[0]
    return _name(node) == "full.default"


def _alike(a: Any, b: Any) -> bool:
    """Return whether the values of two nodes have one shape and dtype."""
    a, b = a.meta["val"], b.meta["val"]
    return bool(a.shape == b.shape and a.dtype == b.dtype)


def _name(node: Any) -> str:
    """Return the name of the operator that a node calls, with its overload."""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""
