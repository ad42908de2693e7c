"""Convert PyTorch operators that TVM's importer lacks or converts incorrectly.

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._util.torch_compat import is_never_negative
from felixlike.errors import UnsupportedOperator
from felixlike.frontend.importers.attention import ATTENTION
from felixlike.frontend.importers.known_sizes import size_of
from felixlike.frontend.importers.pooling import POOLING
from felixlike.frontend.importers.pytorch_regions import convert, run_by_pytorch
from felixlike.frontend.importers.resizing import RESIZING
from felixlike.frontend.importers.windows import WINDOWS


def _embedding(node: Any, importer: Any) -> Any:
    """Convert aten.embedding.

    An index outside the table gives NaN, where PyTorch would raise and TVM's own converter would read out of bounds.
    """
    table, indices = (importer.env[argument] for argument in node.args[:2])
    return importer.block_builder.emit(_tvm.relax.op.take(table, indices, axis=0, mode="nan"))


_CONVOLUTIONS = {
    3: ("conv1d", {"data_layout": "NCW", "kernel_layout": "OIW"}),
    4: ("conv2d", {"data_layout": "NCHW", "kernel_layout": "OIHW"}),
    5: ("conv3d", {"data_layout": "NCDHW", "kernel_layout": "OIDHW"}),
}
"""TVM's operator and its layouts, by rank of the data."""


def _convolution(node: Any, importer: Any) -> Any:
    """Convert aten.convolution. TVM's importer computes all dtypes in float32 and lacks conv3d_transpose."""
    emit = importer.block_builder.emit
    data, weights, bias, strides, padding, dilation, transposed, output_padding, groups = node.args
    x = importer.env[data]
    rank = len(importer.shape_of(x))
    name, layouts = _CONVOLUTIONS[rank]
    options: dict[str, Any] = {"out_dtype": str(x.ty.dtype)}
    if transposed:
        name, options = f"{name}_transpose", options | {"output_padding": output_padding}
        layouts = layouts | {"kernel_layout": layouts["kernel_layout"].replace("OI", "IO")}
    convolved = emit(
        getattr(_tvm.relax.op.nn, name)(
            x,
            importer.env[weights],
            strides=strides,
            padding=padding,
            dilation=dilation,
            groups=groups,
            **layouts,
            **options,
        )
    )
    if bias is None:
        return convolved
    shift = _tvm.relax.op.reshape(importer.env[bias], (1, -1, *[1] * (rank - 2)))
    return emit(_tvm.relax.op.add(convolved, shift))


def _matmul(node: Any, importer: Any) -> Any:
    """Convert aten.mm, aten.bmm and aten.matmul. TVM's importer computes all dtypes in float32."""
    a, b = (importer.env[argument] for argument in node.args)
    return importer.block_builder.emit(_tvm.relax.op.matmul(a, b, out_dtype=str(a.ty.dtype)))


def _addmm(node: Any, importer: Any) -> Any:
    """Convert aten.addmm: β c + α a b. TVM's importer computes all dtypes in float32."""
    op, emit = _tvm.relax.op, importer.block_builder.emit
    c, a, b = (importer.env[argument] for argument in node.args)
    dtype = str(a.ty.dtype)
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    product = emit(op.matmul(a, b, out_dtype=dtype))
    if alpha != 1:
        product = emit(op.multiply(product, _tvm.relax.const(alpha, dtype)))
    if beta == 0:  # PyTorch then ignores c, even if it is NaN
        return product
    if beta != 1:
        c = emit(op.multiply(c, _tvm.relax.const(beta, dtype)))
    return emit(op.add(c, product))


def _reduction(name: str) -> Callable[[Any, Any], Any]:
    """Return a converter of aten.amax, aten.amin or aten.prod, along some dimensions or all."""

    def converted(node: Any, importer: Any) -> Any:
        arguments = [*node.args, *([], False)[len(node.args) - 1 :]]
        dims = node.kwargs.get("dim", arguments[1])
        keepdims = node.kwargs.get("keepdim", arguments[2])
        axes = [dims] if isinstance(dims, int) else [*dims] or None
        reduced = getattr(_tvm.relax.op, name)(importer.env[arguments[0]], axes, keepdims=keepdims)
        return importer.block_builder.emit(reduced)

    return converted


def _elu(node: Any, importer: Any) -> Any:
    """Convert aten.elu. TVM's importer drops the factors `scale` and `input_scale`, which SELU needs."""
    relax, emit = _tvm.relax, importer.block_builder.emit
    alpha, scale, input_scale = map(float, (*node.args[1:], *(1.0, 1.0, 1.0)[len(node.args) - 1 :]))
    data = importer.env[node.args[0]]
    zero = relax.const(0.0, str(data.ty.dtype))
    negative = emit(relax.op.minimum(data, zero))
    exponential = emit(relax.op.exp(emit(relax.op.multiply(negative, relax.const(input_scale, str(data.ty.dtype))))))
    below = emit(relax.op.subtract(exponential, relax.const(1.0, str(data.ty.dtype))))
    scaled = emit(relax.op.multiply(below, relax.const(alpha * scale, str(data.ty.dtype))))
    above = emit(relax.op.multiply(emit(relax.op.maximum(data, zero)), relax.const(scale, str(data.ty.dtype))))
    return emit(relax.op.add(scaled, above))


def _nearest(node: Any, importer: Any) -> Any:
    """Convert aten.upsample_nearest2d: element floor(i · step). TVM's importer supports only whole factors.

    The step is the ratio of the sizes, or 1 / factor where the factor does not lead to a whole size.
    """
    op, emit = _tvm.relax.op, importer.block_builder.emit
    data = importer.env[node.args[0]]
    before, after = node.args[0].meta["val"].shape[2:], node.meta["val"].shape[2:]
    if not all(isinstance(size, int) for size in (*before, *after)):
        raise UnsupportedOperator(f"{node.target} is not supported for dynamic sizes", remedy="use fixed sizes")
    factors = (node.args[2] if len(node.args) > 2 else None) or [b / a for a, b in zip(before, after, strict=True)]
    if all(abs(a * factor - b) < 1e-6 for a, b, factor in zip(before, after, factors, strict=True)):
        where = {"coordinate_transformation_mode": "asymmetric", "rounding_method": "floor"}
        return emit(op.image.resize2d(data, tuple(after), layout="NCHW", method="nearest_neighbor", **where))
    for axis, (extent, size, factor) in enumerate(zip(before, after, factors, strict=True), start=2):
        places = [min(int(i / factor), extent - 1) for i in range(size)]
        data = emit(op.take(data, _tvm.relax.const(places, "int64"), axis=axis))
    return data


def _extreme(value: str, place: str) -> Callable[[Any, Any], Any]:
    """Return a converter of aten.max or aten.min along a dimension: the values and their indices.

    TVM's importer sorts for one of them and lacks the other.
    """

    def converted(node: Any, importer: Any) -> Any:
        op, emit = _tvm.relax.op, importer.block_builder.emit
        data, dim, keepdims = importer.env[node.args[0]], *[*node.args[1:], False][:2]
        extreme = emit(getattr(op, value)(data, dim, keepdims=keepdims))
        return emit(_tvm.relax.Tuple([extreme, emit(getattr(op, place)(data, dim, keepdims=keepdims))]))

    return converted


def _any(node: Any, importer: Any) -> Any:
    """Convert aten.any: the largest truth value. TVM's importer takes the largest number, which may be 0 beside -1."""
    op, emit, const = _tvm.relax.op, importer.block_builder.emit, _tvm.relax.const
    data, options = importer.env[node.args[0]], dict(zip(("dim", "keepdim"), node.args[1:], strict=False))
    options |= node.kwargs
    dims, dtype = options.get("dim"), str(data.ty.dtype)
    truth = data if dtype == "bool" else emit(op.not_equal(data, const(0, dtype)))
    if not len(importer.shape_of(data)):
        return truth
    axes = [dims] if isinstance(dims, int) else dims and [*dims]
    # TVM has no maximum of bools. That of no elements is the least number.
    largest = emit(op.max(emit(op.astype(truth, "int8")), axes or None, keepdims=options.get("keepdim", False)))
    return emit(op.greater(largest, const(0, "int8")))


def _variance_and_mean(node: Any, importer: Any) -> Any:
    """Convert aten.var_mean."""
    variance = importer._var(node)
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    mean = _tvm.relax.op.mean(importer.env[node.args[0]], dims, keepdims=node.kwargs.get("keepdim", False))
    return importer.block_builder.emit(_tvm.relax.Tuple([variance, importer.block_builder.emit(mean)]))


def _exp2(node: Any, importer: Any) -> Any:
    """Convert aten.exp2."""
    data = importer.env[node.args[0]]
    return importer.block_builder.emit(_tvm.relax.op.power(_tvm.relax.const(2.0, str(data.ty.dtype)), data))


def _log2(node: Any, importer: Any) -> Any:
    """Convert aten.log2 to a function that is exact for powers of 2. TVM's importer divides natural logarithms."""
    return importer.block_builder.emit_te(_tvm.topi.log2, importer.env[node.args[0]], primfunc_name_hint="log2")


def _clamp(node: Any, importer: Any) -> Any:
    """Convert aten.clamp. TVM's importer makes missing bounds infinite, which integers cannot be."""
    relax, clamped = _tvm.relax, importer.env[node.args[0]]
    bounds = dict(zip(("min", "max"), node.args[1:], strict=False)) | dict(node.kwargs)
    for name, bound in bounds.items():
        if bound is not None:
            nearer = relax.op.maximum if name == "min" else relax.op.minimum
            limit = importer.env[bound] if bound in importer.env else relax.const(bound, str(clamped.ty.dtype))
            clamped = importer.block_builder.emit(nearer(clamped, limit))
    return clamped


def _division(name: str) -> Callable[[Any, Any], Any]:
    """Return a converter of a division or remainder. Divisions of integers by 0 are divisions by 1.

    PyTorch raises an error. The processor's instruction would end the process. TVM's importer makes any scalar divisor
    int32 or float32.
    """

    def converted(node: Any, importer: Any) -> Any:
        relax, emit = _tvm.relax, importer.block_builder.emit
        data, divisor = (importer.env.get(argument, argument) for argument in node.args)
        dtype = str((divisor if isinstance(data, int | float) else data).ty.dtype)
        data = relax.const(data, dtype) if isinstance(data, int | float) else data
        if isinstance(divisor, int | float):
            divisor = relax.const(divisor, dtype)
        elif not isinstance(getattr(divisor, "ty", None), relax.TensorType):  # a dynamic size
            return importer.create_convert_map()[node.target.__name__](node)
        elif "int" in dtype:
            one, is_zero = relax.const(1, dtype), emit(relax.op.equal(divisor, relax.const(0, dtype)))
            divisor = emit(relax.op.where(is_zero, one, divisor))
        return emit(getattr(relax.op, name)(data, divisor))

    return converted


def _rounded_quotient(node: Any, importer: Any) -> Any:
    """Convert aten.div with a rounding mode."""
    if node.kwargs.get("rounding_mode") == "floor":
        return _division("floor_divide")(node, importer)
    quotient = _division("divide")(node, importer)  # TVM rounds integer quotients towards 0
    is_whole = "int" in str(quotient.ty.dtype)
    return quotient if is_whole else importer.block_builder.emit(_tvm.relax.op.trunc(quotient))


def _range(node: Any, importer: Any) -> Any:
    """Convert aten.arange. TVM infers wrong sizes for negative steps, so these are the negative of a rising range.

    With a dynamic start or end it is a rising range in reverse order.
    """
    start, end, step = [*node.args, 1][:3]
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    if not isinstance(step, int | float):
        raise UnsupportedOperator(f"TVM cannot import {node.target} with a dynamic step", remedy="use a fixed step")
    if step < 0 and not (isinstance(start, int | float) and isinstance(end, int | float)):
        size = size_of(node.meta["val"].shape[0], importer)
        first = start if isinstance(start, int | float) else size_of(start.meta["val"], importer)
        if size is None or first is None or isinstance(first, float) or step != int(step):
            raise UnsupportedOperator(
                f"TVM cannot import {node.target} with a dynamic range and a negative step",
                remedy="use a positive step and flip the range",
            )
        last = first + (size - 1) * int(step)
        rising = importer.block_builder.emit(_tvm.relax.op.arange(last, last - size * int(step), -int(step), dtype))
        return importer.block_builder.emit(_tvm.relax.op.flip(rising, 0))
    if not all(isinstance(number, int | float) for number in (start, end, step)) or step > 0 or dtype == "uint8":
        return importer._arange(node)
    rising = _tvm.relax.op.arange(-start, -end, -step, dtype)
    return importer.block_builder.emit(_tvm.relax.op.negative(rising))


def _group_norm(node: Any, importer: Any) -> Any:
    """Convert aten.native_group_norm. TVM's importer does not support missing weights."""
    import numpy as np

    data, weight, bias, _, channels, _, groups, epsilon = node.args
    x = importer.env[data]
    dtype = str(x.ty.dtype)
    scale, shift = (
        _tvm.relax.const(np.full(channels, value, dtype), dtype) if argument is None else importer.env[argument]
        for argument, value in ((weight, 1), (bias, 0))
    )
    axes = list(range(2, len(importer.shape_of(x))))
    return importer.block_builder.emit(
        _tvm.relax.op.nn.group_norm(x, scale, shift, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon)
    )


def _scatter(node: Any, importer: Any) -> Any:
    """Convert aten.scatter.src and aten.scatter_add. Only the part of the source that has indices is read."""
    data, indices, source = (importer.env[node.args[place]] for place in (0, 2, 3))
    reduction = "add" if "scatter_add" in str(node.target) else "update"
    return _scattered(importer, data, indices, source, node.args[1], reduction)


def _scatter_reduce(node: Any, importer: Any) -> Any:
    """Convert aten.scatter_reduce."""
    op, emit, const = _tvm.relax.op, importer.block_builder.emit, _tvm.relax.const
    axis, reduction = node.args[1], node.args[4]
    data, indices, source = (importer.env[node.args[place]] for place in (0, 2, 3))
    dtype = str(data.ty.dtype)
    if reduction == "mean" and not dtype.startswith("float"):
        raise UnsupportedOperator(
            f"TVM cannot import {node.target} with means of {dtype}", remedy="compute them in float32"
        )

    def filled(value: Any) -> Any:
        return emit(op.broadcast_to(const(value, dtype), importer.shape_of(source)))  # full() refuses infinities

    ones = emit(op.full_like(data, const(1, dtype)))
    if not node.kwargs.get("include_self", True):  # what is written does not count
        data = _scattered(importer, data, indices, filled(_neutral(reduction, node)), axis, "update")
        ones = _scattered(importer, ones, indices, filled(0), axis, "update")
    name = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduction]
    result = _scattered(importer, data, indices, source, axis, name)
    if reduction == "mean":
        result = emit(op.divide(result, _scattered(importer, ones, indices, filled(1), axis, "add")))
    return result


def _neutral(reduction: str, node: Any) -> Any:
    """Return the value that does not change what is reduced with it."""
    import torch

    if reduction in ("sum", "mean", "prod"):
        return int(reduction == "prod")
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point:
        return -math.inf if reduction == "amax" else math.inf
    return torch.iinfo(dtype).min if reduction == "amax" else torch.iinfo(dtype).max


def _scattered(importer: Any, data: Any, indices: Any, source: Any, axis: int, reduction: str) -> Any:
    """Return the data with the part of the source that has indices."""
    op, emit = _tvm.relax.op, importer.block_builder.emit
    extents = [int(extent) for extent in importer.shape_of(indices)]
    source = emit(op.strided_slice(source, [*range(len(extents))], [0] * len(extents), extents))
    return emit(op.scatter_elements(data, indices, source, axis=axis, reduction=reduction))


def _slice(node: Any, importer: Any) -> Any:
    """Convert aten.slice of a dynamic dimension.

    The extent is the one that torch.export derived; TVM would test the bounds.
    """
    arguments: list[Any] = [*node.args, *(0, None, None)[len(node.args) - 1 :]]
    data, axis, start, end, *step = arguments
    start = 0 if start is None else start
    before, after = data.meta["val"].shape, node.meta["val"].shape
    if isinstance(before[axis], int) and isinstance(after[axis], int):
        if after[axis] == 0:  # for which TVM may infer a negative size
            node.args = (data, axis, 0, 0)
        return importer._slice(node)
    size, whole = size_of(after[axis], importer), size_of(before[axis], importer)
    if size is None or whole is None or step not in ([], [1]):
        return importer._slice(node)
    begin, ends = start, end is None or (isinstance(end, int) and end >= sys.maxsize)
    if not isinstance(start, int):
        begin = size_of(start.meta["val"], importer) if is_never_negative(start.meta["val"]) else -1
    if begin is None or (isinstance(begin, int) and begin < 0):
        if not ends:
            return importer._slice(node)
        begin = whole - size  # the slice ends where the dimension ends
    cut = {"axes": [axis % len(before)], "begin": [begin], "end": [begin + size], "assume_inbound": True}
    return importer.block_builder.emit(_tvm.relax.op.strided_slice(importer.env[data], **cut))


def _squeezed(node: Any, importer: Any) -> Any:
    """Convert aten.squeeze, which keeps dimensions of dynamic sizes. TVM would remove them."""
    data, sizes = importer.env[node.args[0]], node.args[0].meta["val"].shape
    if all(isinstance(size, int) for size in sizes):
        return importer._squeeze(node)
    dims = node.args[1] if len(node.args) > 1 else range(len(sizes))
    listed = [dims] if isinstance(dims, int) else dims
    removed = [dim % len(sizes) for dim in listed if isinstance(sizes[dim], int) and sizes[dim] == 1]
    return importer.block_builder.emit(_tvm.relax.op.squeeze(data, removed)) if removed else data


_MOST_FACTORS = 8
"""Largest exponent that becomes products."""
_ROOT = 0.5
"""Exponent of square roots. In float64, they are NaN for -inf in PyTorch, unlike other powers."""


def _power(node: Any, importer: Any) -> Any:
    """Convert aten.pow with a small whole exponent to products, with one half in float64 to a root, as PyTorch does.

    TVM calls a function for every element.
    """
    relax, emit = _tvm.relax, importer.block_builder.emit
    base, exponent = node.args
    if exponent in (_ROOT, -_ROOT) and str(importer.env[base].ty.dtype) == "float64":
        root = emit(relax.op.sqrt(importer.env[base]))
        return root if exponent > 0 else emit(relax.op.divide(relax.const(1.0, str(root.ty.dtype)), root))
    if not isinstance(exponent, int | float) or not 1 < exponent <= _MOST_FACTORS or exponent != int(exponent):
        return importer._pow(node)
    data = importer.env[base]
    power, remaining, square = None, int(exponent), data
    while True:
        if remaining % 2:
            power = square if power is None else emit(relax.op.multiply(power, square))
        remaining //= 2
        if not remaining:
            return power
        square = emit(relax.op.multiply(square, square))


def _full(node: Any, importer: Any) -> Any:
    """Convert aten.full and aten.full_like. TVM's importer cannot create infinities, which masks contain."""
    value, result = node.args[1], node.meta["val"]
    shape = [size_of(size, importer) for size in result.shape]
    if None in shape or not isinstance(value, int | float):
        return importer.create_convert_map()[node.target.__name__](node)
    dtype = str(result.dtype).removeprefix("torch.")
    constant = _tvm.relax.const(value, dtype)
    return importer.block_builder.emit(_tvm.relax.op.broadcast_to(constant, shape))


def _slice_scatter(node: Any, importer: Any) -> Any:
    """Convert aten.slice_scatter. TVM's importer does not limit a start before the first element."""
    arguments: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 2 :]]
    data, source, dim, *bounds = arguments
    size = data.meta["val"].shape[dim]
    if all(number is None or isinstance(number, int) for number in (size, *bounds)):
        start, end, step = slice(*bounds).indices(size)
        if end <= start:
            return importer.env[data]
        node.args = (data, source, dim, start, end, step)
    return importer._slice_scatter(node)


def _copy(node: Any, importer: Any) -> Any:
    """Convert aten.copy: the second operand with the dtype and shape of the first.

    TVM's importer also puts it in place of the first, which other operators may still read.
    """
    op, emit = _tvm.relax.op, importer.block_builder.emit
    old, new = (importer.env[argument] for argument in node.args[:2])
    if str(new.ty.dtype) != str(old.ty.dtype):
        new = emit(op.astype(new, str(old.ty.dtype)))
    shape = importer.shape_of(old)
    return new if _tvm.structural_equal(shape, importer.shape_of(new)) else emit(op.broadcast_to(new, shape))


def _topk(node: Any, importer: Any) -> Any:
    """Convert aten.topk. TVM's importer refuses results in any order, for which their order is one."""
    node.args = node.args[:4]
    return importer._topk(node)


def _branches(node: Any, importer: Any) -> Any:
    """Convert torch.cond. TVM's importer leaves out converters of ours for the operators in its branches."""
    own = set(importer.convert_map)  # those of all operators that a program calls
    importer._translate_fx_graph = partial(importer._translate_fx_graph, custom_ops=own)
    return importer._cond(node)


CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    **ATTENTION,
    **POOLING,
    **RESIZING,
    **WINDOWS,
    "embedding.default": _embedding,
    "convolution.default": _convolution,
    "addmm.default": _addmm,
    "bmm.default": _matmul,
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "amax.default": _reduction("max"),
    "amin.default": _reduction("min"),
    "pow.Tensor_Scalar": _power,
    "prod.dim_int": _reduction("prod"),
    "any.default": _any,
    "any.dim": _any,
    "any.dims": _any,
    "arange.start_step": _range,
    "cond": _branches,
    "copy.default": _copy,
    "div.Tensor_mode": _rounded_quotient,
    "floor_divide.default": _division("floor_divide"),
    "fmod.Scalar": _division("mod"),
    "fmod.Tensor": _division("mod"),
    "remainder.Scalar": _division("floor_mod"),
    "remainder.Tensor": _division("floor_mod"),
    "elu.default": _elu,
    "exp2.default": _exp2,
    "log2.default": _log2,
    "max.dim": _extreme("max", "argmax"),
    "min.dim": _extreme("min", "argmin"),
    "upsample_nearest2d.vec": _nearest,
    "var_mean.correction": _variance_and_mean,
    "clamp.Tensor": _clamp,
    "clamp.default": _clamp,
    "full.default": _full,
    "full_like.default": _full,
    "native_group_norm.default": _group_norm,
    "scatter.src": _scatter,
    "scatter_add.default": _scatter,
    "scatter_reduce.two": _scatter_reduce,
    "slice.Tensor": _slice,
    "slice_scatter.default": _slice_scatter,
    "squeeze.default": _squeezed,
    "squeeze.dim": _squeezed,
    "squeeze.dims": _squeezed,
    "topk.default": _topk,
    run_by_pytorch.__name__: convert,
}
"""Converters by operator: (node, importer) → value."""
