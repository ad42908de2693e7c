"""Interpolate a tensor linearly along one dimension, in a PrimFunc whose attribute tells how.

    y[…, i, …] = (1 - w) · x[…, p, …] + w · x[…, p + 1, …]      p + w = max(a i + b, 0) / c, with integers a, b and c

Input: a block builder and a Relax value. Output: the Relax value of the result. Rewrites of layouts read the attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm

_ATTRIBUTE = "felixlike.interpolation"


@dataclass(frozen=True, slots=True)
class Interpolation:
    """A linear interpolation along one dimension.

    Attributes:
        axis: The dimension.
        size: Its size afterwards.
        step: The integers a, b and c.
        kind: TVM's kind of the PrimFunc, None for the one that it finds.
    """

    axis: int
    size: int
    step: tuple[int, int, int]
    kind: int | None = None

    @staticmethod
    def of(kernel: Any) -> Interpolation | None:
        """Return the interpolation that a PrimFunc of `interpolated` computes, None for others."""
        if kernel is None or not kernel.attrs or _ATTRIBUTE not in kernel.attrs:
            return None
        axis, size, *step = (int(number) for number in kernel.attrs[_ATTRIBUTE])
        a, b, c = step
        kind = kernel.attrs.get("op_pattern")
        return Interpolation(axis, size, (a, b, c), None if kind is None else int(kind))


def interpolated(builder: Any, data: Any, how: Interpolation) -> Any:
    """Interpolate a Relax value, and return the variable of the result."""
    attributes: dict[str, Any] = {_ATTRIBUTE: [how.axis, how.size, *how.step]}
    if how.kind is not None:
        attributes["op_pattern"] = how.kind
    return builder.emit_te(partial(_kernel, how=how), data, primfunc_name_hint="interpolate", primfunc_attrs=attributes)


def _kernel(data: Any, how: Interpolation) -> Any:
    """Return the result of an interpolation as a tensor expression."""
    tirx, (a, b, c), axis = _tvm.tirx, how.step, how.axis
    last, dtype = int(data.shape[axis]) - 1, str(data.dtype)

    def element(*place: Any) -> Any:
        # int32: processors have vectors of its quotients.
        at = tirx.max(place[axis].astype("int32") * a + b, 0)
        low, rest = tirx.min(tirx.floordiv(at, c), last), tirx.floormod(at, c)
        weight = rest.astype(dtype) * tirx.const(1 / c, dtype)
        left, right = (
            data(*place[:axis], index.astype("int64"), *place[axis + 1 :]) for index in (low, tirx.min(low + 1, last))
        )
        return left * (tirx.const(1, dtype) - weight) + right * weight

    return _tvm.te.compute((*data.shape[:axis], how.size, *data.shape[axis + 1 :]), element, name="interpolate")
