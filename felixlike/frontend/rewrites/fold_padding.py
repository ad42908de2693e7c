"""Turn zero padding of a tensor into the padding of the convolution or pooling that reads it.

    conv(pad(x, 1), padding=0)   →   conv(x, padding=1)
    conv(float32(pad(x, 1)), padding=0)   →   conv(float32(x), padding=1)

A separate pad is a task that copies. As padding of a convolution, schedules choose where it is computed. Pads of
width 0 are removed.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, with_attributes

_CONVOLUTIONS = {f"nn.conv{rank}d" for rank in (1, 2, 3)}
_MEANS = {f"nn.avg_pool{rank}d" for rank in (1, 2, 3)}


def with_absorbed_pads(module: Any) -> Any:
    """Fold pads into convolutions, and into average poolings that count their padding.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _absorbed)


def _absorbed(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Add the widths of a pad to the padding of its reader, and drop pads of width 0."""
    name = operator(expression)
    if name == "nn.pad" and expression.attrs.pad_mode == "constant" and not any(_widths(expression)):
        return rewriter.new(expression.args[0])
    if name not in _CONVOLUTIONS | _MEANS:
        return None
    attrs, pad, casts = expression.attrs, known.value(expression.args[0]), []
    while operator(pad) == "astype":  # models in bfloat16 are computed in float32
        casts.append(str(pad.ty.dtype))
        pad = known.value(pad.args[0])
    if operator(pad) != "nn.pad" or pad.attrs.pad_mode != "constant" or float(pad.attrs.pad_value) != 0.0:
        return None
    layout = str(attrs.data_layout if name in _CONVOLUTIONS else attrs.layout)
    widths = _widths(pad)
    before, after = widths[::2], widths[1::2]
    spatial = [i for i, axis in enumerate(layout) if axis not in "NC"]
    elsewhere = any(before[i] or after[i] for i in range(len(layout)) if i not in spatial)
    counted = name in _CONVOLUTIONS or (attrs.count_include_pad and not attrs.ceil_mode)
    if elsewhere or min(widths) < 0 or not counted:
        return None
    padding = [int(width) for width in attrs.padding]
    added = [*(before[i] for i in spatial), *(after[i] for i in spatial)]
    data, *others = [rewriter.new(argument) for argument in (pad.args[0], *expression.args[1:])]
    for dtype in reversed(casts):
        data = rewriter.builder.emit(_tvm.relax.op.astype(data, dtype))
    arguments = [data, *others]
    return with_attributes(expression, arguments, padding=[a + b for a, b in zip(padding, added, strict=True)])


def _widths(pad: Any) -> list[int]:
    """Return the widths before and after each axis in turn."""
    return [int(width) for width in pad.attrs.pad_width]
