"""Compute group and instance norms in two passes: first the mean, then the mean of squared differences from it.

    channels first:  x as [N, G, C/G, S] → mean and variance of groups → result: one PrimFunc of rows, like a layer norm
    channels last:   sums of each channel → means of each group → the same for the squared differences → elementwise
                     operators, which fuse with adjacent ones

TVM sums x and x² in one reduction of two values. It loses precision if the mean is large, and no schedule rule has a
sketch with exact formulas for it. Y. Wu and K. He, Group Normalization (2018), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import OPAQUE, OUT_FUSIBLE, Bindings, Rewriter, operator, rewritten, shape

_NORMS = {"nn.group_norm", "nn.instance_norm"}

_DTYPE = "float32"
"""Element type that is rewritten. For shorter types TVM sums in float32, and they stay unchanged."""


def with_group_norms_in_two_passes(module: Any) -> Any:
    """Replace the float32 group and instance norms of a module by sums and elementwise operators.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _in_two_passes)


def _in_two_passes(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    """Replace a float32 group or instance norm over whole channels."""
    if operator(expression) not in _NORMS or str(expression.ty.dtype) != _DTYPE:
        return None
    extents, attrs = shape(expression), expression.attrs
    axis = int(attrs.channel_axis) % len(extents)
    axes = {int(a) % len(extents) for a in attrs.axes} - ({0} if extents[0] == 1 else set())
    norm = _Norm(
        extents=extents,
        groups=int(attrs.num_groups) if operator(expression) == "nn.group_norm" else extents[axis],
        epsilon=float(attrs.epsilon),
        builder=rewriter.builder,
    )
    if axes != set(range(1, len(extents))) - {axis} or axis not in (1, len(extents) - 1):
        return None
    arguments = [rewriter.new(argument) for argument in expression.args]
    return norm.of_rows(*arguments) if axis == 1 else norm.of_channels(*arguments)


@dataclass(frozen=True, slots=True)
class _Norm:
    """Build one norm.

    `extents` is the shape of its input and output, `builder` TVM's block builder of the new function.
    """

    extents: tuple[int, ...]
    groups: int
    epsilon: float
    builder: Any

    def of_rows(self, data: Any, scale: Any, shift: Any) -> Any:
        """Build the norm for channels first, where each group is a row of memory."""
        reshape, emit = _tvm.relax.op.reshape, self.builder.emit
        batch, channels, *places = self.extents
        members, size, groups = channels // self.groups, prod(places), self.groups

        def summed(name: str, value: Callable[..., Any]) -> Any:
            c, s = _tvm.te.reduce_axis((0, members), name="c"), _tvm.te.reduce_axis((0, size), name="s")
            return _tvm.te.compute([batch, groups], lambda n, g: _tvm.te.sum(value(n, g, c, s), axis=[c, s]), name=name)

        def normalised(x: Any, gamma: Any, beta: Any) -> Any:
            total = summed("total", x)
            mean = _tvm.te.compute([batch, groups], lambda n, g: total[n, g] / self._count, name="mean")

            def different(n: Any, g: Any, c: Any, s: Any) -> Any:
                return x[n, g, c, s] - mean[n, g]

            squares = summed("squares", lambda *at: different(*at) * different(*at))

            def value(n: Any, g: Any, c: Any, s: Any) -> Any:
                return different(n, g, c, s) * self._inverse(squares[n, g]) * gamma[g, c] + beta[g, c]

            return _tvm.te.compute([batch, groups, members, size], value, name="norm")

        arguments = [emit(reshape(data, (batch, groups, members, size)))]
        arguments += [emit(reshape(vector, (groups, members))) for vector in (scale, shift)]
        return reshape(emit(self._call(normalised, "group_norm", OUT_FUSIBLE, *arguments)), self.extents)

    def of_channels(self, data: Any, scale: Any, shift: Any) -> Any:
        """Build the norm for channels last, where each channel is summed, and then these sums by group."""
        op, emit = _tvm.relax.op, self.builder.emit
        batch, *places, channels = self.extents
        members = channels // self.groups

        def summed(name: str, value: Callable[..., Any]) -> Any:
            along = [_tvm.te.reduce_axis((0, extent), name=f"s{i}") for i, extent in enumerate(places)]
            return _tvm.te.compute(
                [batch, channels], lambda n, c: _tvm.te.sum(value(n, *along, c), axis=along), name=name
            )

        def by_group(x: Any, value: Callable[..., Any]) -> Any:
            c = _tvm.te.reduce_axis((0, members), name="c")
            shape = [batch, self.groups]
            whole = _tvm.te.compute(shape, lambda n, g: _tvm.te.sum(x[n, g * members + c], axis=[c]), name="whole")
            return _tvm.te.compute([batch, channels], lambda n, c: value(whole[n, c // members]), name="of_group")

        def squares(x: Any, mean: Any) -> Any:
            def different(n: Any, *at: Any) -> Any:
                return x(n, *at) - mean[n, at[-1]]

            return summed("squares", lambda *at: different(*at) * different(*at))

        def everywhere(x: Any) -> Any:
            return emit(op.reshape(x, [batch, *(1 for _ in places), channels]))

        total = emit(self._call(lambda x: summed("total", x), "channel_sums", OPAQUE, data))
        mean = emit(self._call(lambda x: by_group(x, lambda sum_: sum_ / self._count), "group_means", OPAQUE, total))
        deviation = emit(self._call(squares, "channel_squares", OPAQUE, data, mean))
        inverse = emit(self._call(lambda x: by_group(x, self._inverse), "group_deviations", OPAQUE, deviation))
        unit = op.multiply(emit(op.subtract(data, everywhere(mean))), everywhere(inverse))
        return op.add(emit(op.multiply(emit(unit), scale)), shift)

    @property
    def _count(self) -> Any:
        """Number of elements of a group."""
        return _tvm.tirx.const(prod(self.extents[1:]) // self.groups, _DTYPE)

    def _inverse(self, squares: Any) -> Any:
        """Return 1 / standard deviation from the summed squares of a group."""
        return _tvm.te.rsqrt(squares / self._count + _tvm.tirx.const(self.epsilon, _DTYPE))

    def _call(self, function: Callable[..., Any], name: str, pattern: int, *arguments: Any) -> Any:
        """Return a call of a TE function as an annotated PrimFunc."""
        attributes = {"op_pattern": pattern}
        return self.builder.call_te(function, *arguments, primfunc_name_hint=name, primfunc_attrs=attributes)
