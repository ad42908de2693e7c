"""Convert max and average pooling with windows larger than the input or with a given divisor.

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value.
"""

from collections.abc import Callable
from typing import Any

from felixlike import _tvm
from felixlike.errors import UnsupportedOperator

_DILATION = 4
"""Index of max pooling's dilation among its arguments."""

_DIVISOR = 6
"""Index of average pooling's divisor among its arguments."""


def _maximum(name: str) -> Callable[[Any, Any], Any]:
    """Return TVM's max pooling converter (its method's name), with windows cropped to the padded input."""

    def converted(node: Any, importer: Any) -> Any:
        if all(step == 1 for step in _of_dimensions(node, _DILATION, 1)):
            _cut_windows(node)
        return getattr(importer, name)(node)

    return converted


def _mean(name: str) -> Callable[[Any, Any], Any]:
    """Return TVM's average pooling converter with cropped windows. TVM's own ignores `divisor_override`."""

    def converted(node: Any, importer: Any) -> Any:
        import torch

        _cut_windows(node)
        divisor = node.args[_DIVISOR] if len(node.args) > _DIVISOR else None
        if divisor is None:
            return getattr(importer, name)(node)
        if not node.args[0].meta["val"].is_floating_point():
            raise UnsupportedOperator(
                f"TVM cannot import {node.target} of integers with a divisor", remedy="convert the operand: x.float()"
            )
        without_padding = (*node.args[:5], False)
        sums = node.target(torch.ones(node.args[0].meta["val"].shape), *without_padding[1:], 1)
        node.args = without_padding
        means = getattr(importer, name)(node)
        factors = _tvm.relax.const((sums / divisor).numpy(), str(means.ty.dtype))
        return importer.block_builder.emit(_tvm.relax.op.multiply(means, factors))

    return converted


def _cut_windows(node: Any) -> None:
    """Crop windows that reach beyond both ends of a dimension, which only `ceil_mode` allows.

    Such a window is the only one, so its stride becomes 1. TVM would iterate over all elements of the uncropped
    window and reserve space for another stride.
    """
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
    """Return an argument of a node as one number per dimension of the window, the default where it is missing."""
    argument = node.args[place] if len(node.args) > place else []
    rank = int(str(node.target).split("pool")[1][0])
    listed = [argument] if isinstance(argument, int) else [*argument] or [default]
    return listed * rank if len(listed) == 1 else listed


POOLING: dict[str, Callable[[Any, Any], Any]] = {
    **{f"avg_pool{rank}d.default": _mean(f"_avg_pool{rank}d") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d.default": _maximum(f"_max_pool{rank}d") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices.default": _maximum(f"_max_pool{rank}d_with_indices") for rank in (2, 3)},
}
"""Converters by operator: (node, importer) → value."""
