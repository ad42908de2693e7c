"""Keep lookups and scatters in bounds.

relax.take's "fast" mode reads out of bounds for a bad index (TVM warns of segmentation faults on stderr). It also
misreads negative indices, which PyTorch and ONNX count from the end. Mode "wrap" is right for those. gather_elements
reads, and scatter_elements writes, out of bounds as well. Their indices are limited to the axis. slice_scatter reads
beyond its source for all elements outside of the slice, although it does not use what it reads.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, shape


def with_safe_indices(module: Any) -> Any:
    """Make lookups wrap around for indices out of range, and limit those of elements that are gathered or scattered.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _wrapped)


def _wrapped(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace a take of mode "fast" by one of mode "wrap", and limit the indices of other operators."""
    if operator(expression) in ("gather_elements", "scatter_elements"):
        return _limited(expression, known, rewriter)
    if operator(expression) == "slice_scatter":
        return _assigned(expression, rewriter)
    if operator(expression) != "take" or expression.attrs.mode != "fast":
        return None
    arguments = [rewriter.new(argument) for argument in expression.args]
    return _tvm.relax.op.take(*arguments, axis=expression.attrs.axis, mode="wrap")


def _limited(call: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Limit the indices of a call. Indices that are repeated for each column are limited before."""
    op, emit = _tvm.relax.op, rewriter.builder.emit
    data, indices, *rest = call.args
    size: Any = shape(data)[int(call.attrs.axis)]
    spread = known.value(indices)
    if isinstance(size, int) and not size:
        return None
    repeated = operator(spread) == "broadcast_to"
    index = rewriter.new(spread.args[0] if repeated else indices)
    if isinstance(size, int):
        zero, extent, last = (_tvm.relax.const(number, str(indices.ty.dtype)) for number in (0, size, size - 1))
        counted = emit(op.where(emit(op.less(index, zero)), emit(op.add(index, extent)), index))
        limited = emit(op.minimum(emit(op.maximum(counted, zero)), last))
    else:
        axis = int(call.attrs.axis)
        limited = emit(rewriter.builder.call_te(inside, index, rewriter.new(data), axis, primfunc_name_hint="inside"))
    limited = emit(op.broadcast_to(limited, shape(indices))) if repeated else limited
    arguments = [rewriter.new(data), limited, *map(rewriter.new, rest)]
    return _tvm.relax.Call(call.op, arguments, call.attrs)


def inside(indices: Any, data: Any, axis: int) -> Any:
    """Return the TE tensor of indices that are limited to a dynamic axis of data. Negative ones count from its end."""
    tirx, dtype = _tvm.tirx, str(indices.dtype)
    zero, extent = tirx.const(0, dtype), data.shape[axis].astype(dtype)

    def limited(*place: Any) -> Any:
        index = indices(*place)
        counted = tirx.Select(index < zero, index + extent, index)
        return tirx.max(tirx.min(counted, extent - tirx.const(1, dtype)), zero)

    return _tvm.te.compute(indices.shape, limited, name="inside")


def _assigned(call: Any, rewriter: Rewriter) -> Any:
    """Replace an assignment to a slice by a kernel that reads its source within bounds only."""
    data, source, *bounds = call.args
    axis = int(call.attrs.axis) % len(shape(data))
    if shape(source)[axis] == 0:
        return rewriter.new(data)
    tensors = (rewriter.new(data), rewriter.new(source))
    return rewriter.builder.call_te(_slice, *tensors, *bounds, axis, primfunc_name_hint="slice_scatter")


def _slice(x: Any, source: Any, start: Any, end: Any, step: Any, axis: int) -> Any:
    """Return the TE tensor of x with a slice along a dimension replaced."""
    tirx, last = _tvm.tirx, source.shape[axis] - 1

    def element(*place: Any) -> Any:
        i = place[axis]
        inside = tirx.all(i >= start, i < end, tirx.floormod(i - start, step) == 0)
        row = tirx.max(tirx.min(tirx.floordiv(i - start, step), last), 0)
        # In a Select, TVM would remove the limits of `row`, which the condition implies, and yet read both sides.
        return tirx.if_then_else(inside, source(*place[:axis], row, *place[axis + 1 :]), x(*place))

    return _tvm.te.compute(x.shape, element, name="slice_scatter")
