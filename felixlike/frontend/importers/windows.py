"""Convert PyTorch operators that read windows of tensors or index elements.

TVM's importer lacks them or converts them incorrectly.

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike._util.torch_compat import is_dense
from felixlike.errors import UnsupportedOperator
from felixlike.frontend.importers.grid_samples import grid_sample
from felixlike.frontend.rewrites.clamp_lookups import inside
from felixlike.frontend.rewrites.rewriting import OPAQUE, copy_of
from felixlike.frontend.signature.layouts import memory_order


def _sizes(node: Any) -> list[int]:
    """Return the shape of a node's value.  Raises UnsupportedOperator for dynamic sizes."""
    sizes = [*node.meta["val"].shape]
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedOperator(
            f"{node} has dynamic sizes, which operators with windows do not support",
            remedy="optimize the model for one shape, or rewrite that part with other operators",
        )
    return sizes


def _index(node: Any, importer: Any) -> Any:
    """Convert aten.index.

    TVM's importer pairs indices as if all had the same rank, and takes x[:, i, j] for all pairs. Indexed dimensions
    are moved to the front. The result's dimensions are placed as in PyTorch: at the first indexed dimension if all
    are adjacent, otherwise at the front.
    """
    op, emit = _tvm.relax.op, importer.block_builder.emit
    data = importer.env[node.args[0]]
    rank = len(importer.shape_of(data))
    by_dim = {dim: importer.env[index] for dim, index in enumerate(node.args[1]) if index is not None}
    indexed, others = [*by_dim], [dim for dim in range(rank) if dim not in by_dim]
    if len(by_dim) == 1:
        return emit(op.take(data, by_dim[indexed[0]], axis=indexed[0]))
    wide = max(len(importer.shape_of(index)) for index in by_dim.values())
    indices = []
    for dim, raw_index in by_dim.items():  # negative ones count from the end, bad ones stay in bounds
        size = importer.shape_of(data)[dim]
        if isinstance(size, _tvm.tirx.IntImm):
            index = emit(op.floor_mod(raw_index, _tvm.relax.const(int(size), str(raw_index.ty.dtype))))
        else:
            index = importer.block_builder.emit_te(inside, raw_index, data, dim, primfunc_name_hint="inside")
        shape = [*importer.shape_of(index)]
        short = wide - len(shape)
        indices.append(emit(op.reshape(index, [*[1] * short, *shape])) if short else index)
    front = [*indexed, *others]
    ordered = data if front == [*range(rank)] else emit(op.permute_dims(data, front))
    gathered = emit(op.index_tensor(ordered, indices))
    place = indexed[0] if indexed == [*range(indexed[0], indexed[0] + len(indexed))] else 0
    if not place:
        return gathered
    return emit(
        op.permute_dims(gathered, [*range(wide, wide + place), *range(wide), *range(wide + place, wide + len(others))])
    )


def _windows(node: Any, importer: Any) -> Any:
    """Convert aten.im2col: every window of an image as a column, with zero padding."""
    data = importer.env[node.args[0]]
    (high, wide), dilation, padding, stride = node.args[1:]
    sizes = _sizes(node.args[0])
    channels, height, width = sizes[-3:]
    down, across = (
        (extent + 2 * pad - spread * (size - 1) - 1) // step + 1
        for extent, size, spread, pad, step in zip(
            (height, width), (high, wide), dilation, padding, stride, strict=True
        )
    )
    batch = sizes[0] if len(sizes) == 4 else 1

    def windows(x: Any) -> Any:
        def element(n: Any, c: Any, i: Any, j: Any, y: Any, z: Any) -> Any:
            row = y * stride[0] + i * dilation[0] - padding[0]
            column = z * stride[1] + j * dilation[1] - padding[1]
            if not any(padding):
                return x[n, c, row, column]
            inside = _tvm.tirx.all(row >= 0, row < height, column >= 0, column < width)
            return _tvm.tirx.if_then_else(inside, x[n, c, row, column], _tvm.tirx.const(0, x.dtype))

        return _tvm.te.compute((batch, channels, high, wide, down, across), element, name="windows")

    op, emit = _tvm.relax.op, importer.block_builder.emit
    images = emit(op.reshape(data, (batch, channels, height, width)))
    columns = importer.block_builder.emit_te(windows, images, primfunc_name_hint="windows")
    return emit(op.reshape(columns, _sizes(node)))


_MOST_TERMS = 64
"""Upper limit on the windows that cover an element, for sums of windows without loops. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Cover:
    """The windows along one dimension that cover an element.

    Attributes:
        size: Elements of the dimension.
        count: Windows along it.
        window: Elements of a window.
        dilation, padding, stride: Of the windows.
    """

    size: int
    count: int
    window: int
    dilation: int
    padding: int
    stride: int

    @staticmethod
    def of(size: int, window: int, dilation: int, before: int, after: int, stride: int) -> "Cover":
        """Return the windows along a dimension of some size, to which `before` and `after` elements are added."""
        count = (size + before + after - dilation * (window - 1) - 1) // stride + 1
        return Cover(size, count, window, dilation, before, stride)

    @property
    def terms(self) -> int:
        """Upper limit on the windows that cover an element."""
        return -(-self.window // self.stride) if self.dilation == 1 else self.window

    def term(self, number: int, place: Any) -> tuple[Any, Any, list[Any]]:
        """Return the number of a window, the place in it, and the conditions under which it covers an element.

        place: TIR expression of the element. Conditions that hold for all elements are left out.
        """
        everywhere = np.arange(self.size)
        window, inner, conditions = self._term(number, place)
        # The same expressions of all elements tell which conditions are needed.
        *_, known = self._term(number, everywhere)
        return window, inner, [test for test, holds in zip(conditions, known, strict=True) if not np.all(holds)]

    def _term(self, number: int, place: Any) -> tuple[Any, Any, list[Any]]:
        """Return the same for a TIR expression or an array, with all conditions."""
        place, stride, conditions = place + self.padding, self.stride, []
        if self.dilation == 1:
            inner = place % stride + number * stride if stride > 1 else number
            window = place // stride - number
            conditions = [inner < self.window]
        else:
            inner, first = number, place - number * self.dilation
            window = first // stride
            conditions = [first % stride == 0]
        return window, inner, [*conditions, window >= 0, window < self.count]


def _covers(node: Any) -> list[Cover]:
    """Return the windows of aten.col2im along rows and columns."""
    _, sizes, windows, dilations, paddings, strides = node
    return [
        Cover.of(size, window, dilation, padding, padding, stride)
        for size, window, dilation, padding, stride in zip(sizes, windows, dilations, paddings, strides, strict=True)
    ]


def is_summed_here(*arguments: Any) -> bool:
    """Return whether a converter takes aten.col2im with these arguments: few windows cover an element."""
    sizes = [*arguments[0].shape, *arguments[1]]
    fixed = all(isinstance(size, int) for size in sizes)
    return fixed and has_few_terms(_covers(arguments))


def _sum_of_windows(node: Any, importer: Any) -> Any:
    """Convert aten.col2im: the sum of the windows that cover each element of an image.

    PyTorch's decomposition scatters each element of each window. Windows side by side are only moved.
    """
    return sum_of_windows(importer.block_builder, importer.env[node.args[0]], _covers(node.args), _sizes(node))


def has_few_terms(covers: Sequence[Cover]) -> bool:
    """Return whether few windows cover an element, so that `sum_of_windows` is not too large."""
    return math.prod(cover.terms for cover in covers) <= _MOST_TERMS


def sum_of_windows(builder: Any, windows: Any, covers: Sequence[Cover], shape: Sequence[int]) -> Any:
    """Sum the windows that cover each element of images.

    Args:
        builder: The block builder.
        windows: Their elements, [batch ·] (channels · height · width of a window) · number of windows.
        covers: The windows along rows and columns.
        shape: Of the result, [batch ·] channels · height · width.

    Returns:
        The Relax value.
    """
    op, emit = _tvm.relax.op, builder.emit
    channels, (height, width) = shape[-3], shape[-2:]
    batch = shape[0] if len(shape) == _BATCHED else 1
    (down, across), (high, wide) = ([c.count for c in covers], [c.window for c in covers])
    columns = emit(op.reshape(windows, (batch, channels, high, wide, down, across)))
    if all(
        c.stride == c.window and c.dilation == 1 and c.padding == 0 and c.size == c.window * c.count for c in covers
    ):
        return emit(op.reshape(emit(op.permute_dims(columns, (0, 1, 4, 2, 5, 3))), shape))

    def summed(x: Any) -> Any:
        zero = _tvm.tirx.const(0, x.dtype)

        def element(n: Any, c: Any, i: Any, j: Any) -> Any:
            total = None
            for numbers in itertools.product(*(range(cover.terms) for cover in covers)):
                (y, inner_y, of_y), (z, inner_z, of_z) = (
                    cover.term(number, place) for cover, number, place in zip(covers, numbers, (i, j), strict=True)
                )
                value = x[n, c, inner_y, inner_z, y, z]
                if conditions := [*of_y, *of_z]:
                    value = _tvm.tirx.if_then_else(_tvm.tirx.all(*conditions), value, zero)
                total = value if total is None else total + value
            return total

        return _tvm.te.compute((batch, channels, height, width), element, name="sum_of_windows")

    summed_windows = builder.emit_te(summed, columns, primfunc_name_hint="sum_of_windows")
    return emit(op.reshape(summed_windows, shape))


_BATCHED = 4
"""Dimensions of images with a batch."""


def _slices(node: Any, importer: Any) -> Any:
    """Convert aten.unfold: windows along one dimension, which become a new last dimension.

    Windows that overlap read a padded tensor from memory, where their elements are contiguous. Padding would compute
    the place of each element of each window.
    """
    source, dim, size, step = node.args
    rank = len(_sizes(source))
    dim %= max(rank, 1)
    shape = _sizes(node)
    if not rank:
        return importer.block_builder.emit(_tvm.relax.op.reshape(importer.env[source], shape))

    def slices(x: Any) -> Any:
        def element(*places: Any) -> Any:
            *outer, last = places
            return x[(*outer[:dim], outer[dim] * step + last, *outer[dim + 1 :])]

        return _tvm.te.compute(shape, element, name="slices")

    builder, data = importer.block_builder, importer.env[source]
    if step < size and _is_padded(source):
        data = _written(data, builder)
    return builder.emit_te(slices, data, primfunc_name_hint="slices")


def _strided(node: Any, importer: Any) -> Any:
    """Convert aten.as_strided of a tensor without gaps: elements of its memory, at sums of indices times strides.

    TVM's importer lacks windows that overlap, and reads permuted tensors as if they were contiguous.
    """
    source, (sizes, strides, *rest) = node.args[0].meta["val"], node.args[1:]
    offset = rest[0] if rest else node.kwargs.get("storage_offset")
    begin = 0 if offset is None else offset - source.storage_offset()
    if not all(isinstance(number, int) for number in (begin, *sizes, *strides, *source.shape)):
        raise UnsupportedOperator(f"{node.target} is not supported for dynamic sizes", remedy="use fixed sizes")
    last = begin + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if not is_dense(source) or begin < 0 or last >= source.numel():
        raise UnsupportedOperator(
            f"{node.target} reads the memory that a view is part of",
            remedy="copy the view first: x.clone(memory_format=torch.contiguous_format)",
        )
    op, builder, order = _tvm.relax.op, importer.block_builder, memory_order(source)
    data = importer.env[node.args[0]]
    memory = builder.emit(op.reshape(builder.emit(op.permute_dims(data, order)) if order else data, (source.numel(),)))
    if [*strides] == [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))] and last + 1 - begin == source.numel():
        return builder.emit(op.reshape(memory, sizes))

    def elements(x: Any) -> Any:
        def element(*places: Any) -> Any:
            return x[begin + sum(place * stride for place, stride in zip(places, strides, strict=True))]

        return _tvm.te.compute(sizes, element, name="elements")

    if math.prod(sizes) > source.numel() and _is_padded(node.args[0]):
        memory = _written(memory, builder)
    return builder.emit_te(elements, memory, primfunc_name_hint="elements")


def _written(padded: Any, builder: Any) -> Any:
    """Return a copy of a padded tensor, which is not fused, so that its readers do not pad each element again."""
    attributes = {"op_pattern": OPAQUE}
    return builder.emit_te(copy_of, padded, "padded", primfunc_name_hint="padded", primfunc_attrs=attributes)


def _is_padded(node: Any) -> bool:
    """Return whether a node's value is a padded tensor or a view of one."""
    while node.op == "call_function" and any(name in node.target.__name__ for name in ("view", "squeeze")):
        node = node.args[0]
    return node.op == "call_function" and "pad" in node.target.__name__


def _adaptive_maxima(node: Any, importer: Any) -> Any:
    """Convert aten.adaptive_max_pool2d and 3d: maxima along one dimension after another.

    All windows of a dimension get the length of the longest. Shorter ones repeat their last element.
    """
    op, emit = _tvm.relax.op, importer.block_builder.emit
    data, sizes = importer.env[node.args[0]], node.args[1]
    shape = _sizes(node.args[0])
    first = len(shape) - len(sizes)
    for axis, size in enumerate(sizes, start=first):
        if size == shape[axis]:
            continue
        windows = _adaptive_windows(shape[axis], size)
        if len(windows) * len(windows[0]) != shape[axis]:
            places = _tvm.relax.const([place for window in windows for place in window], "int64")
            data = emit(op.take(data, places, axis=axis))
        data = emit(op.reshape(data, (*shape[:axis], size, len(windows[0]), *shape[axis + 1 :])))
        data = emit(op.max(data, axis + 1))
        shape[axis] = size
    return emit(_tvm.relax.Tuple([data]))


def _adaptive_windows(extent: int, size: int) -> list[list[int]]:
    """Return the indices of each of `size` windows, all as long as the longest."""
    bounds = [(i * extent // size, -(-(i + 1) * extent // size)) for i in range(size)]
    longest = max(end - begin for begin, end in bounds)
    return [[min(begin + i, end - 1) for i in range(longest)] for begin, end in bounds]


def _grouped_product(node: Any, importer: Any) -> Any:
    """Convert aten._grouped_mm of rows in groups, and the operator of the same meaning that transformers registers.

    The offsets are the ends of the groups. Row i of group g is multiplied by matrix g, which the kernel reads in place.
    Rows behind the last group become 0, which transformers' operator defines; PyTorch leaves them undefined.
    """
    rows, matrices, *more = node.args
    given = dict(zip(("offs", "bias", "out_dtype"), more, strict=False)) | dict(node.kwargs)
    if (len(_sizes(rows)), len(_sizes(matrices))) != (2, 3) or given.get("bias") is not None:
        raise UnsupportedOperator(
            f"TVM cannot import {node.target} with a bias or for other ranks than 2 and 3", remedy="use torch.bmm"
        )
    count, width = _sizes(rows)
    groups, _, columns = _sizes(matrices)
    relax, op, emit = _tvm.relax, _tvm.relax.op, importer.block_builder.emit
    ends = emit(op.reshape(importer.env[given["offs"]], (1, groups)))
    places = emit(op.arange(0, count, 1, str(ends.ty.dtype)))
    behind = emit(op.astype(emit(op.less_equal(ends, emit(op.reshape(places, (count, 1))))), "int32"))
    group = emit(op.sum(behind, 1))

    def product(x: Any, w: Any, g: Any) -> Any:
        k = _tvm.te.reduce_axis((0, width), name="k")

        def element(i: Any, j: Any) -> Any:
            place = _tvm.tirx.max(_tvm.tirx.min(g[i], groups - 1), 0)
            return _tvm.te.sum(x[i, k] * w[place, k, j], axis=k)

        return _tvm.te.compute((count, columns), element, name="grouped_product")

    operands = importer.env[rows], importer.env[matrices], group
    result = importer.block_builder.emit_te(product, *operands, primfunc_name_hint="grouped_product")
    inside = emit(op.less(emit(op.reshape(group, (count, 1))), relax.const(groups, "int32")))
    return emit(op.where(inside, result, relax.const(0, str(result.ty.dtype))))


WINDOWS: dict[str, Callable[[Any, Any], Any]] = {
    "adaptive_max_pool2d.default": _adaptive_maxima,
    "adaptive_max_pool3d.default": _adaptive_maxima,
    "_grouped_mm.default": _grouped_product,
    "col2im.default": _sum_of_windows,
    "grid_sampler_2d.default": grid_sample,
    "grouped_mm_fallback.default": _grouped_product,
    "im2col.default": _windows,
    "index.Tensor": _index,
    "as_strided.default": _strided,
    "unfold.default": _slices,
}
"""Converters by operator: (node, importer) → value."""

KEPT: Sequence[str] = ("im2col.default",)
"""Operators that PyTorch would decompose into indices of each element. They stay."""
