"""Compute adaptive average pooling along one dimension after the other.

    Y[n, c, i, j] = mean of X[n, c, window(i), window(j)]   →   R[n, c, i, w] = mean of X[n, c, window(i), w]
                                                                Y[n, c, i, j] = mean of R[n, c, i, window(j)]

TVM's kernel sums up each window by itself, in loops whose lengths are computed for each element. Here the first
dimensions are summed in vectors along the last one, and lengths of windows are constants.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import OPAQUE, Bindings, Rewriter, operator, rewritten, shape

_OPERATORS = tuple(f"nn.adaptive_avg_pool{rank}d" for rank in (1, 2, 3))
_DTYPES = ("float32", "float64")
"""Types of elements. Narrower ones would be rounded after each dimension."""
_MOST_TERMS = 16
"""Upper limit on the elements of a window that are summed up in an expression, without a loop. Chosen by hand."""
_MOST_UNEVEN_TERMS = 64
"""The same where windows have several lengths, so that loops would need conditions. Chosen by hand."""


def with_pools_by_dimension(module: Any) -> Any:
    """Replace adaptive average pooling by means along single dimensions.

    Args:
        module: Relax IRModule with operators and fixed sizes.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _pooled)


def _pooled(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    """Replace a call of adaptive average pooling."""
    if operator(expression) not in _OPERATORS:
        return None
    before, after = shape(expression.args[0]), shape(expression)
    if str(expression.ty.dtype) not in _DTYPES or len(before) != len(after) or 0 in (*before, *after):
        return None
    axes = [axis for axis, (extent, size) in enumerate(zip(before, after, strict=True)) if extent != size]
    if axes and all(after[axis] == 1 for axis in axes):
        return None  # one sum, which TVM computes as such
    if not all(_is_supported(before[axis], after[axis]) for axis in axes):
        return None
    data, name = rewriter.new(expression.args[0]), operator(expression).removeprefix("nn.")
    if not axes:
        return _tvm.relax.op.reshape(data, after)  # a view
    for axis in axes:
        last = axis == axes[-1]
        # The means of one dimension are not computed again for each of the next.
        attributes = None if last else {"op_pattern": OPAQUE}
        mean = partial(_mean, axis=axis, size=int(after[axis]))
        call = rewriter.builder.call_te(mean, data, primfunc_name_hint=name, primfunc_attrs=attributes)
        data = call if last else rewriter.builder.emit(call)
    return data


def _is_supported(extent: int, size: int) -> bool:
    """Return whether windows of a dimension can be written without conditions on the lengths of loops."""
    return extent % size == 0 or _longest(extent, size) <= _MOST_UNEVEN_TERMS


def _longest(extent: int, size: int) -> int:
    """Return the length of the longest window."""
    return max(-(-(i + 1) * extent // size) - i * extent // size for i in range(size))


def _mean(data: Any, axis: int, size: int) -> Any:
    """Return the TE tensor of the means of the windows along a dimension."""
    extent = int(data.shape[axis])
    even = extent % size == 0
    length = extent // size if even else _longest(extent, size)
    shape_after = [*data.shape[:axis], size, *data.shape[axis + 1 :]]
    if length > _MOST_TERMS and even:
        return _by_loop(data, axis, shape_after, length)
    tirx, dtype = _tvm.tirx, str(data.dtype)

    def element(*place: Any) -> Any:
        # int32: processors have vectors of its quotients.
        i = place[axis] if even else place[axis].astype("int32")
        first = i * length if even else tirx.floordiv(i * extent, size)

        def term(number: Any) -> Any:
            return data(*place[:axis], number.astype("int64"), *place[axis + 1 :])

        total = term(first)
        for number in range(1, length - (0 if even else 1)):
            total = total + term(first + number)
        if even or length == 1:
            return total * tirx.const(1 / length, dtype)
        # The last element belongs to the longest windows only.
        end, last = tirx.floordiv((i + 1) * extent + (size - 1), size), first + (length - 1)
        total = total + tirx.Select(last < end, term(tirx.min(last, extent - 1)), tirx.const(0, dtype))
        return total * tirx.Select(last < end, tirx.const(1 / length, dtype), tirx.const(1 / (length - 1), dtype))

    return _tvm.te.compute(shape_after, element, name="pool")


def _by_loop(data: Any, axis: int, shape_after: list[Any], length: int) -> Any:
    """Return the TE tensor of the means of windows of one length, as a reduction."""
    step = _tvm.te.reduce_axis((0, length), name="k")

    def total(*place: Any) -> Any:
        return _tvm.te.sum(data(*place[:axis], place[axis] * length + step, *place[axis + 1 :]), axis=step)

    sums, factor = _tvm.te.compute(shape_after, total, name="pool_sum"), _tvm.tirx.const(1 / length, str(data.dtype))
    return _tvm.te.compute(shape_after, lambda *place: sums(*place) * factor, name="pool")
