"""Make sorting and argmax treat NaN as larger than all numbers, as PyTorch does.

    argsort(x)   →   argsort(key(x))                              key: integers in the order of the floats
    argmax(x)    →   min(i where x[i] = max(x) or x[i] is NaN)

TVM sorts by a < b, which is not an order with NaN. Its argmax skips NaN and returns no index if all elements are
-inf. Its reduction to a (value, index) pair cannot be vectorized. The two reductions used here can.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, shape

_MANTISSAS = {32: 0x7FFFFFFF, 64: 0x7FFFFFFFFFFFFFFF}
"""All bits of a float except the sign, by its width in bits."""


def with_total_order(module: Any) -> Any:
    """Sort floats by integer keys, and compute argmax from the maximum.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _ordered)


def _ordered(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    """Replace argmax, argmin, and sorts of floats."""
    name = operator(expression)
    if name in ("argmax", "argmin"):
        return _place(expression, rewriter, largest=name == "argmax")
    if name in ("sort", "argsort", "topk") and "float" in str(expression.args[0].ty.dtype):
        return _sorted(expression, rewriter, name)
    return None


def _sorted(call: Any, rewriter: Rewriter, name: str) -> Any:
    """Replace sort, argsort and topk by sorting integer keys."""
    relax, emit, how = _tvm.relax, rewriter.builder.emit, call.attrs
    data = rewriter.new(call.args[0])
    keys = emit(rewriter.builder.call_te(_keys, data, primfunc_name_hint="order"))
    if name == "argsort":
        return relax.op.argsort(keys, axis=how.axis, descending=how.descending, dtype=how.dtype)
    if name == "sort":
        places = emit(relax.op.argsort(keys, axis=how.axis, descending=how.descending, dtype="int64"))
        return relax.op.gather_elements(data, places, axis=how.axis)
    where = {"k": how.k, "axis": how.axis, "largest": how.largest, "ret_type": "indices"}
    if how.ret_type == "indices":
        return relax.op.topk(keys, dtype=how.dtype, **where)
    places = emit(relax.op.topk(keys, dtype="int64", **where))
    values = emit(relax.op.gather_elements(data, places, axis=how.axis))
    if how.ret_type == "values":
        return values
    return relax.Tuple([values, emit(relax.op.astype(places, how.dtype))])


def _keys(data: Any) -> Any:
    """Return integers in the order of floats: equal for both zeros, the largest for NaN.

    The bits of nonnegative floats, read as integers, have the floats' order. Those of negative floats have the
    opposite order.
    """

    def key(*place: Any) -> Any:
        value = data(*place) if str(data.dtype) in ("float32", "float64") else data(*place).astype("float32")
        dtype = str(value.ty.dtype).replace("float", "int")
        largest = _tvm.tirx.const(_MANTISSAS[int(dtype.removeprefix("int"))], dtype)
        bits = _tvm.tirx.reinterpret(dtype, value)
        turned = _tvm.tirx.Select(bits < _tvm.tirx.const(0, dtype), bits ^ largest, bits)
        number = _tvm.tirx.Select(value == _tvm.tirx.const(0, str(value.ty.dtype)), _tvm.tirx.const(0, dtype), turned)
        return _tvm.tirx.Select(value >= _tvm.tirx.const(-math.inf, str(value.ty.dtype)), number, largest)

    return _tvm.te.compute(data.shape, key, name="key")


def _place(call: Any, rewriter: Rewriter, *, largest: bool) -> Any:
    """Replace argmax or argmin by a search for the extreme value."""
    op, emit = _tvm.relax.op, rewriter.builder.emit
    data, sizes = rewriter.new(call.args[0]), list(shape(call.args[0]))
    axis = call.attrs.axis
    if axis is None:
        axis, sizes = 0, [math.prod(sizes)]
        data = emit(op.reshape(data, sizes))
    axis = int(axis) % len(sizes)
    extreme = emit((op.max if largest else op.min)(data, axis, keepdims=True))
    index = emit(rewriter.builder.call_te(_first, data, extreme, axis, primfunc_name_hint="place"))
    return op.reshape(index, shape(call))


def _first(data: Any, extreme: Any, axis: int) -> Any:
    """Return the first index along an axis that holds the extreme, or NaN, which is then the extreme."""
    size, dtype = data.shape[axis], str(data.dtype)
    extent = int(size) if isinstance(size, _tvm.tirx.IntImm) else size
    steps = _tvm.te.reduce_axis((0, extent), name="k")

    def first(*place: Any) -> Any:
        value = data(*place[:axis], steps, *place[axis + 1 :])
        here, beyond = steps.astype("int64"), size.astype("int64")
        if "float" in dtype:
            beyond = _tvm.tirx.Select(value >= _tvm.tirx.const(-math.inf, dtype), beyond, here)
        return _tvm.te.min(_tvm.tirx.Select(value == extreme(*place), here, beyond), axis=steps)

    return _tvm.te.compute(extreme.shape, first, name="place")
