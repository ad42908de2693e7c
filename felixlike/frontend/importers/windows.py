"""Convert PyTorch operators that read windows of tensors or index elements.

TVM's importer lacks them or converts them incorrectly.

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value.
"""

from collections.abc import Callable, Sequence
from typing import Any

from felixlike import _tvm
from felixlike.errors import UnsupportedOperator


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
    read = [node.args[0], *(index for index in node.args[1] if index is not None)]
    if not all(isinstance(size, int) for part in read for size in part.meta["val"].shape):
        return importer._index_tensor(node)
    rank = len(importer.shape_of(data))
    by_dim = {dim: importer.env[index] for dim, index in enumerate(node.args[1]) if index is not None}
    indexed, others = [*by_dim], [dim for dim in range(rank) if dim not in by_dim]
    if len(by_dim) == 1:
        return emit(op.take(data, by_dim[indexed[0]], axis=indexed[0]))
    wide = max(len(importer.shape_of(index)) for index in by_dim.values())
    indices = []
    for dim, raw_index in by_dim.items():
        extent = _tvm.relax.const(int(importer.shape_of(data)[dim]), str(raw_index.ty.dtype))
        index = emit(op.floor_mod(raw_index, extent))  # negative ones count from the end, bad ones stay in bounds
        shape = [int(size) for size in importer.shape_of(index)]
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


def _slices(node: Any, importer: Any) -> Any:
    """Convert aten.unfold: windows along one dimension, which become a new last dimension."""
    source, dim, _, step = node.args
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

    return importer.block_builder.emit_te(slices, importer.env[source], primfunc_name_hint="slices")


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


def _sampled(node: Any, importer: Any) -> Any:
    """Convert aten.grid_sampler_2d. TVM expects the two coordinates in front, which its importer ignores."""
    data, grid, method, padding, aligned = node.args
    emit = importer.block_builder.emit
    turned = emit(_tvm.relax.op.permute_dims(importer.env[grid], (0, 3, 1, 2)))
    sampled = _tvm.relax.op.image.grid_sample(
        importer.env[data],
        turned,
        method=("bilinear", "nearest", "bicubic")[method],
        layout="NCHW",
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=aligned,
    )
    return emit(sampled)


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
    "grid_sampler_2d.default": _sampled,
    "grouped_mm_fallback.default": _grouped_product,
    "im2col.default": _windows,
    "index.Tensor": _index,
    "unfold.default": _slices,
}
"""Converters by operator: (node, importer) → value."""

KEPT: Sequence[str] = ("im2col.default",)
"""Operators that PyTorch would decompose into indices of each element. They stay."""
