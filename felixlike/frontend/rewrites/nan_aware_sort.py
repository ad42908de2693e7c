"""Make sorting and argmax treat NaN as larger than all numbers, as PyTorch does.

    argsort(x)   →   argsort(key(x))                              key: integers in the order of the floats
    sort(x)      →   float(sort(key(x)))                   if nothing reads the positions
    argmax(x)    →   min(i where x[i] = max(x) or x[i] is NaN)

TVM sorts by a < b, which is not an order with NaN. Its argmax skips NaN and returns no index if all elements are
-inf. Its reduction to a (value, index) pair cannot be vectorized. The two reductions used here can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, shape
from felixlike.frontend.rewrites.sort_kernels import (
    LEAST,
    MOST,
    MOST_INSERTED,
    largest_positions,
    sort_keys,
    sort_positions,
)

_MANTISSAS = {32: 0x7FFFFFFF, 64: 0x7FFFFFFFFFFFFFFF}
"""All bits of a float except the sign, by its width in bits."""


_NARROW = ("int8", "int16", "uint8")
"""Types that TVM's kernels do not sort."""


def with_total_order(module: Any, on_cpu: bool = False) -> Any:
    """Sort floats by integer keys, and compute argmax from the maximum.

    Args:
        module: Relax IRModule with operators.
        on_cpu: Whether the module is compiled for a CPU. Then rows of at least `LEAST` elements are sorted by our own
            kernels (`sort_kernels.py`), shorter ones by TVM's.

    Returns:
        The rewritten module.
    """
    return rewritten(module, partial(_ordered, on_cpu=on_cpu))


def _ordered(expression: Any, bindings: Bindings, rewriter: Rewriter, *, on_cpu: bool) -> Any:
    """Replace argmax, argmin, and sorts."""
    name = operator(expression)
    if name in ("argmax", "argmin"):
        return _place(expression, rewriter, largest=name == "argmax")
    if name in ("sort", "argsort", "topk"):
        return _sorted(expression, rewriter, name, on_cpu=on_cpu)
    if name == "gather_elements" and on_cpu:
        return _sorted_values(expression, bindings, rewriter)
    return None


def _sorted_values(call: Any, bindings: Bindings, rewriter: Rewriter) -> Any:
    """Replace a sort of which only the values are read by one that moves no positions. Others are gathered.

    Zeros of both signs are equal, but each keeps its sign: here, -0 comes before 0.
    """
    data, indices = call.args
    places = bindings.value(indices)
    if operator(places) != "argsort" or not places.args[0].same_as(data) or places.attrs.axis != call.attrs.axis:
        return None
    if not _is_for_own_kernels(places) or not _is_only_reader(call, indices, bindings):
        return _gathered(rewriter.new(data), rewriter.new(indices), int(call.attrs.axis), rewriter)
    new, dtype = rewriter.new(data), str(data.ty.dtype)
    sort = partial(sort_keys, descending=bool(places.attrs.descending))
    if "float" not in dtype:
        return _by_rows(new, int(call.attrs.axis), sort, rewriter)
    emit, call_te = rewriter.builder.emit, rewriter.builder.call_te
    keys = emit(call_te(partial(_keys, zeros_differ=True), new, primfunc_name_hint="order"))
    ordered = _by_rows(keys, int(call.attrs.axis), sort, rewriter)
    return call_te(partial(_floats, dtype=dtype), ordered, primfunc_name_hint="values")


def _gathered(data: Any, places: Any, axis: int, rewriter: Rewriter) -> Any:
    """Return the elements at positions of a sort. Those of `gather_elements` would be checked (`clamp_lookups.py`)."""

    def elements(data: Any, places: Any) -> Any:
        at = axis % len(places.shape)
        return _tvm.te.compute(places.shape, lambda *i: data(*i[:at], places(*i), *i[at + 1 :]), name="gather")

    return rewriter.builder.call_te(elements, data, places, primfunc_name_hint="gather")


def _is_only_reader(reader: Any, variable: Any, bindings: Bindings) -> bool:
    """Return whether nothing else reads a variable, apart from tuples of which that element is not read."""
    for other in bindings.readers(variable):
        if other.same_as(reader):
            continue
        joined = bindings.variable(other) if isinstance(other, _tvm.relax.Tuple) else None
        if joined is None:
            return False
        for element in bindings.readers(joined):
            if not isinstance(element, _tvm.relax.TupleGetItem) or other.fields[element.index].same_as(variable):
                return False
    return True


def _sorted(call: Any, rewriter: Rewriter, name: str, *, on_cpu: bool) -> Any:
    """Replace sort, argsort and topk by sorting integer keys.  Returns None for integers that TVM sorts."""
    op, emit, how = _tvm.relax.op, rewriter.builder.emit, call.attrs
    dtype, own = str(call.args[0].ty.dtype), on_cpu and _is_for_own_kernels(call)
    with_floats, is_narrow = "float" in dtype, dtype in _NARROW and not own
    if not with_floats and not own and not is_narrow:
        return None
    data = rewriter.new(call.args[0])
    keys = emit(rewriter.builder.call_te(_keys, data, primfunc_name_hint="order")) if with_floats else data
    keys = emit(op.astype(keys, "int32")) if is_narrow else keys
    if name != "topk":
        positions = partial(sort_positions, descending=bool(how.descending))
        if own:
            places = _by_rows(keys, int(how.axis), positions, rewriter)
        else:
            places = emit(op.argsort(keys, axis=how.axis, descending=how.descending, dtype="int64"))
        gathered = name == "sort"
        return _gathered(data, places, int(how.axis), rewriter) if gathered else op.astype(places, how.dtype)
    count, largest = int(how.k), bool(how.largest)
    if own and count <= MOST_INSERTED:
        places = _by_rows(keys, int(how.axis), partial(largest_positions, count=count, largest=largest), rewriter)
    elif own:
        places = _by_rows(keys, int(how.axis), partial(sort_positions, descending=largest), rewriter)
        places = emit(op.strided_slice(places, [how.axis], [0], [count]))
    else:
        places = emit(op.topk(keys, k=count, axis=how.axis, largest=largest, ret_type="indices", dtype="int64"))
    indices = emit(op.astype(places, how.dtype))
    if how.ret_type == "indices":
        return indices
    values = emit(_gathered(data, places, int(how.axis), rewriter))
    return values if how.ret_type == "values" else _tvm.relax.Tuple([values, indices])


def _is_for_own_kernels(call: Any) -> bool:
    """Return whether kernels of `sort_kernels` sort a tensor: integers or floats in rows that are long enough."""
    sizes = shape(call.args[0])
    if not all(isinstance(size, int) for size in sizes) or "bool" in str(call.args[0].ty.dtype):
        return False
    return LEAST <= sizes[int(call.attrs.axis)] < MOST and math.prod(sizes) > 0


def _by_rows(keys: Any, axis: int, positions: Callable[..., Any], rewriter: Rewriter) -> Any:
    """Return the positions that a kernel computes along an axis."""
    op, emit, sizes = _tvm.relax.op, rewriter.builder.emit, [int(size) for size in keys.ty.shape.values]
    order = [number for number in range(len(sizes)) if number != axis % len(sizes)] + [axis % len(sizes)]
    in_order = order == sorted(order)
    moved = keys if in_order else emit(op.permute_dims(keys, order))
    rows = emit(op.reshape(moved, (math.prod(sizes) // sizes[axis], sizes[axis])))
    places = emit(rewriter.builder.call_te(positions, rows, primfunc_name_hint="positions"))
    count = int(places.ty.shape.values[1])
    result = emit(op.reshape(places, [*(sizes[number] for number in order[:-1]), count]))
    return result if in_order else emit(op.permute_dims(result, [order.index(n) for n in range(len(order))]))


def _keys(data: Any, *, zeros_differ: bool = False) -> Any:
    """Return integers in the order of floats, the largest for NaN. Zeros are equal, or -0 is before 0.

    The bits of nonnegative floats, read as integers, have the floats' order. Those of negative floats have the
    opposite order.
    """

    def key(*place: Any) -> Any:
        value = data(*place) if str(data.dtype) in ("float32", "float64") else data(*place).astype("float32")
        dtype = str(value.ty.dtype).replace("float", "int")
        largest = _tvm.tirx.const(_MANTISSAS[int(dtype.removeprefix("int"))], dtype)
        bits = _tvm.tirx.reinterpret(dtype, value)
        turned = _tvm.tirx.Select(bits < _tvm.tirx.const(0, dtype), bits ^ largest, bits)
        number = turned
        if not zeros_differ:
            number = _tvm.tirx.Select(
                value == _tvm.tirx.const(0, str(value.ty.dtype)), _tvm.tirx.const(0, dtype), turned
            )
        return _tvm.tirx.Select(value >= _tvm.tirx.const(-math.inf, str(value.ty.dtype)), number, largest)

    return _tvm.te.compute(data.shape, key, name="key")


def _floats(keys: Any, *, dtype: str) -> Any:
    """Return the floats that have these keys, if zeros differ."""
    integer = str(keys.dtype)
    mantissa = _tvm.tirx.const(_MANTISSAS[_tvm.bits(integer)], integer)

    def value(*place: Any) -> Any:
        key = keys(*place)
        bits = _tvm.tirx.Select(key < _tvm.tirx.const(0, integer), key ^ mantissa, key)
        return _tvm.tirx.reinterpret(integer.replace("int", "float"), bits).astype(dtype)

    return _tvm.te.compute(keys.shape, value, name="value")


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
