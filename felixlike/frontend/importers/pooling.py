"""Maxima and means of windows: those larger than the input, and means divided by a number that is given.

In: a node of an ExportedProgram's graph, TVM's importer. Out: the value, as Relax.
"""

from collections.abc import Callable
from typing import Any

from felixlike import _tvm

_DILATION = 4
"""The place of a maximum's dilation among its arguments."""

_DIVISOR = 6
"""The place of a mean's divisor among its arguments."""


def _maximum(name: str) -> Callable[[Any, Any], Any]:
    """Of TVM's importer, by the name of its method, with windows no larger than the input."""

    def converted(node: Any, importer: Any) -> Any:
        if all(step == 1 for step in _of_dimensions(node, _DILATION, 1)):
            _cut_windows(node)
        return getattr(importer, name)(node)

    return converted


def _mean(name: str) -> Callable[[Any, Any], Any]:
    """The same; TVM's importer divides by the elements of a window whatever divisor is given."""

    def converted(node: Any, importer: Any) -> Any:
        import torch

        _cut_windows(node)
        divisor = node.args[_DIVISOR] if len(node.args) > _DIVISOR else None
        if divisor is None:
            return getattr(importer, name)(node)
        without_padding = (*node.args[:5], False)
        sums = node.target(torch.ones(node.args[0].meta["val"].shape), *without_padding[1:], 1)
        node.args = without_padding
        means = getattr(importer, name)(node)
        factors = _tvm.relax.const((sums / divisor).numpy(), str(means.ty.dtype))
        return importer.block_builder.emit(_tvm.relax.op.multiply(means, factors))

    return converted


def _cut_windows(node: Any) -> None:
    """Windows that reach beyond both ends of a dimension, which only `ceil_mode` allows, end there, and being the only
    one need no stride: TVM would go through all of their elements, and make room for another stride."""
    window = _of_dimensions(node, 1, 1)
    shape = node.args[0].meta["val"].shape[-len(window) :]
    padding = _of_dimensions(node, 3, 0)
    if not all(isinstance(size, int) for size in shape):
        return
    cut = [min(size, extent + 2 * pad) for size, extent, pad in zip(window, shape, padding, strict=True)]
    if cut != window:
        stride = _of_dimensions(node, 2, 0)
        stride = stride if all(stride) else window
        stride = [step if new == old else 1 for step, new, old in zip(stride, cut, window, strict=True)]
        node.args = (node.args[0], cut, stride, *node.args[3:])


def _of_dimensions(node: Any, place: int, default: int) -> list[int]:
    """An argument of a node for each dimension of its windows; the default where it is not given."""
    given = node.args[place] if len(node.args) > place else []
    rank = int(str(node.target).split("pool")[1][0])
    listed = [given] if isinstance(given, int) else [*given] or [default]
    return listed * rank if len(listed) == 1 else listed


POOLING: dict[str, Callable[[Any, Any], Any]] = {
    **{f"avg_pool{rank}d.default": _mean(f"_avg_pool{rank}d") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d.default": _maximum(f"_max_pool{rank}d") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices.default": _maximum(f"_max_pool{rank}d_with_indices") for rank in (2, 3)},
}
"""Operators by name: (node, importer) → the value."""
