"""Replace norms in float64, which TVM lacks, by means and elementwise operators in two passes.

layer norm         x → (x - mean) / √(mean of squared differences from it + ε), along some dimensions
group norm         the same of [N, G, C/G, …] along all but the first two; an instance norm has one channel per group

Group and instance norms of dynamic sizes are replaced in every dtype. TVM computes their variance as a difference of
means, which can be negative if a group's values are nearly equal, so that the result is NaN.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, shape


def with_wide_norms(module: Any) -> Any:
    """Replace the float64 layer, group and instance norms of a module, and group and instance norms of dynamic sizes.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _written_out)


def _written_out(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    """Replace a norm over whole channels or groups that is float64 or has dynamic sizes."""
    name = operator(expression)
    if name not in ("nn.layer_norm", "nn.group_norm", "nn.instance_norm"):
        return None
    extents = shape(expression)
    fixed = name == "nn.layer_norm" or all(isinstance(extent, int) for extent in extents)
    if str(expression.ty.dtype) != "float64" and fixed:
        return None
    reshape, emit, attrs = _tvm.relax.op.reshape, rewriter.builder.emit, expression.attrs
    data, scale, shift = map(rewriter.new, expression.args)
    if name == "nn.layer_norm":
        return _scaled(_unit(data, list(attrs.axes), attrs.epsilon, emit), scale, shift, attrs, emit)
    axis, channels = int(attrs.channel_axis), extents[1]
    axes = {int(a) % len(extents) for a in attrs.axes} - ({0} if extents[0] == 1 else set())
    if axis != 1 or axes != set(range(2, len(extents))):
        return None
    groups = int(attrs.num_groups) if name == "nn.group_norm" else channels
    members = emit(reshape(data, (extents[0], groups, channels // groups, *extents[2:])))
    unit = emit(reshape(_unit(members, [*range(2, len(extents) + 1)], attrs.epsilon, emit), extents))
    scale, shift = (emit(reshape(v, (channels, *[1] * (len(extents) - 2)))) for v in (scale, shift))
    return _scaled(unit, scale, shift, attrs, emit)


def _unit(data: Any, axes: list[Any], epsilon: float, emit: Any) -> Any:
    """Normalise to mean 0 and variance 1 along the axes."""
    op = _tvm.relax.op
    centred = emit(op.subtract(data, emit(op.mean(data, axes, keepdims=True))))
    variance = emit(op.mean(emit(op.multiply(centred, centred)), axes, keepdims=True))
    deviation = emit(op.sqrt(emit(op.add(variance, _tvm.relax.const(float(epsilon), str(data.ty.dtype))))))
    return emit(op.divide(centred, deviation))


def _scaled(unit: Any, scale: Any, shift: Any, attrs: Any, emit: Any) -> Any:
    """Apply scale and shift where the norm has them."""
    scaled = emit(_tvm.relax.op.multiply(unit, scale)) if attrs.scale else unit
    return _tvm.relax.op.add(scaled, shift) if attrs.center else scaled
