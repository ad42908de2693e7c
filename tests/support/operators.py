"""Operators as PrimFuncs, each in a realistic size and in one small enough to count every iteration.

`OPERATORS` maps a name to a function of `small_size`. Sizes include primes, odd numbers and ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from felixlike import _tvm

te, topi = _tvm.te, _tvm.topi


def _input(*shape: int, name: str = "X", dtype: str = "float32") -> Any:
    return te.placeholder(shape, name=name, dtype=dtype)


def _func(*tensors: Any) -> Any:
    return te.create_prim_func(list(tensors))


def matmul(n: int, k: int, m: int) -> Any:
    """C = A · B."""
    a, b, r = _input(n, k, name="A"), _input(k, m, name="B"), te.reduce_axis((0, k), name="k")
    return _func(a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C"))


def dense(n: int, k: int, m: int) -> Any:
    """relu(X · Wᵀ + b)."""
    x, w, b = _input(n, k), _input(m, k, name="W"), _input(m, name="b")
    r = te.reduce_axis((0, k), name="k")
    y = te.compute((n, m), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="Y")
    z = te.compute((n, m), lambda i, j: y[i, j] + b[j], name="Z")
    return _func(x, w, b, topi.nn.relu(z))


def batch_matmul(batch: int, n: int, k: int, m: int) -> Any:
    """C[b] = A[b] · B[b]ᵀ."""
    a, b = _input(batch, n, k, name="A"), _input(batch, m, k, name="B")
    return _func(a, b, topi.nn.batch_matmul(a, b))


def conv1d(channels: int, size: int, filters: int, kernel: int = 3) -> Any:
    """One-dimensional convolution, NCW, with padding."""
    x, w = _input(1, channels, size), _input(filters, channels, kernel, name="W")
    return _func(x, w, topi.nn.conv1d(x, w, 1, kernel // 2, 1))


def conv2d(
    channels: int,
    size: int,
    filters: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    padding: int | None = None,
    dilation: int = 1,
    relu: bool = False,
) -> Any:
    """Two-dimensional convolution, NCHW."""
    x, w = _input(1, channels, size, size), _input(filters, channels, kernel, kernel, name="W")
    y = topi.nn.conv2d_nchw(x, w, stride, kernel // 2 if padding is None else padding, dilation)
    return _func(x, w, topi.nn.relu(y) if relu else y)


def conv2d_nhwc(channels: int, size: int, filters: int, kernel: int = 3, *, stride: int = 1, batch: int = 1) -> Any:
    """Two-dimensional convolution, NHWC."""
    x, w = _input(batch, size, size, channels), _input(kernel, kernel, channels, filters, name="W")
    return _func(x, w, topi.nn.conv2d_nhwc(x, w, stride, kernel // 2, 1))


def grouped(channels: int, size: int, filters: int, groups: int) -> Any:
    """Grouped convolution, NCHW, 3×3."""
    x, w = _input(1, channels, size, size), _input(filters, channels // groups, 3, 3, name="W")
    return _func(x, w, topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, groups))


def depthwise(channels: int, size: int, stride: int = 1) -> Any:
    """Depthwise convolution, NCHW, 3×3."""
    x, w = _input(1, channels, size, size), _input(channels, 1, 3, 3, name="W")
    return _func(x, w, topi.nn.depthwise_conv2d_nchw(x, w, stride, 1, 1))


def depthwise_nhwc(channels: int, size: int, stride: int = 1) -> Any:
    """Depthwise convolution, NHWC, 3×3, as Relax legalises it."""
    x, w = _input(1, size, size, channels), _input(3, 3, 1, channels, name="W")
    return _func(x, w, topi.nn.conv(x, w, stride, 1, 1, channels, "NHWC", "HWIO"))


def scaled_residual(channels: int, size: int) -> Any:
    """ReLU of a depthwise 1×1 convolution plus its input, NCHW."""
    x, w = _input(1, channels, size, size), _input(channels, 1, 1, 1, name="W")
    return _func(x, w, topi.nn.relu(topi.add(topi.nn.depthwise_conv2d_nchw(x, w, 1, 0, 1), x)))


def conv3d(channels: int, depth: int, size: int, filters: int) -> Any:
    """Three-dimensional convolution, NCDHW, 3×3×3."""
    x, w = _input(1, channels, depth, size, size), _input(filters, channels, 3, 3, 3, name="W")
    return _func(x, w, topi.nn.conv3d_ncdhw(x, w, 1, 1, 1, 1))


def transposed(channels: int, size: int, filters: int) -> Any:
    """Transposed convolution, NCHW, 4×4, stride 2."""
    x, w = _input(1, channels, size, size), _input(channels, filters, 4, 4, name="W")
    return _func(x, w, topi.nn.conv2d_transpose_nchw(x, w, (2, 2), (1, 1), "float32", (0, 0)))


def pool(channels: int, size: int, kind: str, kernel: int = 3, padding: int = 1) -> Any:
    """Pooling with stride 2."""
    x = _input(1, channels, size, size)
    y = topi.nn.pool2d(x, (kernel, kernel), (2, 2), (1, 1), (padding,) * 4, kind)
    return _func(x, y)


def global_pool(channels: int, size: int) -> Any:
    """Mean of every channel."""
    x = _input(1, channels, size, size)
    return _func(x, topi.nn.global_pool(x, "avg"))


def softmax(*shape: int) -> Any:
    """Softmax along the last axis."""
    x = _input(*shape)
    return _func(x, topi.nn.softmax(x))


def log_softmax(rows: int, columns: int) -> Any:
    """Logarithm of the softmax along the last axis."""
    x = _input(rows, columns)
    return _func(x, topi.nn.log_softmax(x))


def layer_norm(rows: int, columns: int) -> Any:
    """Layer normalization over the last axis, with scale and shift."""
    x, scale, shift = _input(rows, columns), _input(columns, name="scale"), _input(columns, name="shift")
    return _func(x, scale, shift, topi.nn.layer_norm(x, scale, shift, [1], 1e-5))


def batch_norm(channels: int, size: int) -> Any:
    """Batch normalization at inference: a scale and a shift for each channel."""
    x = _input(1, channels, size, size)
    scale, shift = _input(channels, name="scale"), _input(channels, name="shift")
    y = te.compute(x.shape, lambda n, c, h, w: x[n, c, h, w] * scale[c] + shift[c], name="Y")
    return _func(x, scale, shift, y)


def reduction(shape: tuple[int, ...], axis: int | tuple[int, ...] | None, kind: str = "sum") -> Any:
    """Sum or maximum along axes; None for all axes."""
    x = _input(*shape)
    return _func(x, getattr(topi, kind)(x, axis=axis))


def broadcast_chain(rows: int, columns: int) -> Any:
    """relu(x) · y + z with y a row and z a column."""
    x, y, z = _input(rows, columns), _input(columns, name="Y"), _input(rows, 1, name="Z")
    return _func(x, y, z, topi.add(topi.multiply(topi.nn.relu(x), y), z))


def transpose(*shape: int) -> Any:
    """Transposition of the last two axes."""
    x = _input(*shape)
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return _func(x, topi.transpose(x, axes))


def split_heads(length: int, heads: int, width: int) -> Any:
    """Split a matrix into one matrix for each head: length × (heads · width) → heads × length × width."""
    x = _input(length, heads * width)
    by_head = topi.transpose(topi.reshape(x, (1, length, heads, width)), (0, 2, 1, 3))
    return _func(x, topi.reshape(by_head, (heads, length, width)))


def merge_heads(length: int, heads: int, width: int) -> Any:
    """Merge the matrices of all heads: heads × length × width → length × (heads · width)."""
    x = _input(heads, length, width)
    by_position = topi.transpose(topi.reshape(x, (1, heads, length, width)), (0, 2, 1, 3))
    return _func(x, topi.reshape(by_position, (length, heads * width)))


def patches(channels: int, size: int) -> Any:
    """Flatten an image behind one additional row: channels × size × size → (1 + size²) × channels."""
    x, first = _input(channels, size, size), _input(1, channels, name="first")
    return _func(x, first, topi.concatenate((first, topi.transpose(topi.reshape(x, (channels, size * size)))), axis=0))


def gather(rows: int, columns: int, count: int) -> Any:
    """Embedding lookup."""
    table, ids = _input(rows, columns, name="table"), _input(count, name="ids", dtype="int64")
    return _func(table, ids, topi.take(table, ids, axis=0))


def concat(rows: int, left: int, right: int) -> Any:
    """Concatenation of two matrices along the columns."""
    a, b = _input(rows, left, name="A"), _input(rows, right, name="B")
    return _func(a, b, topi.concatenate((a, b), axis=1))


def grouped_nhwc(channels: int, size: int, filters: int, groups: int, *, stride: int = 1) -> Any:
    """Grouped convolution, NHWC, 3×3."""
    x, w = _input(1, size, size, channels), _input(3, 3, channels // groups, filters, name="W")
    return _func(x, w, topi.nn.group_conv2d_nhwc(x, w, stride, 1, 1, groups))


def einsum(*sizes: int) -> Any:
    """Product of four matrices in one sum."""
    inputs = [_input(*sizes[i : i + 2], name=name) for i, name in enumerate("ABCD")]
    return _func(*inputs, topi.einsum("ij,jk,kl,lm->im", *inputs))


def rms_norm(rows: int, columns: int) -> Any:
    """RMS normalization over the last axis, with scale."""
    x, scale = _input(rows, columns), _input(columns, name="scale")
    return _func(x, scale, topi.nn.rms_norm(x, scale, [1], 1e-5))


def upsample(channels: int, size: int) -> Any:
    """Nearest-neighbour upsampling by a factor of 2."""
    x = _input(1, channels, size, size)
    return _func(x, topi.nn.upsampling(x, 2, 2))


def depth_to_space(channels: int, size: int) -> Any:
    """Move channels to 2×2 blocks of pixels."""
    x = _input(1, 4 * channels, size, size)
    return _func(x, topi.nn.depth_to_space(x, 2))


def gather_nd(rows: int, columns: int, count: int) -> Any:
    """Gather elements at pairs of indices."""
    x, ids = _input(rows, columns), _input(2, count, name="ids", dtype="int64")
    return _func(x, ids, topi.gather_nd(x, ids))


def rotated(length: int, width: int) -> Any:
    """Rotary position embedding: conditions and remainders mix the halves of rows."""
    x, half = _input(length, width), width // 2
    cos, sin = _input(length, half, name="cos"), _input(length, half, name="sin")

    def value(i: Any, j: Any) -> Any:
        rotated_half = _tvm.tirx.if_then_else(j < half, 0 - x[i, (j + half) % width], x[i, (j + half) % width])
        return x[i, j] * cos[i, j % half] + rotated_half * sin[i, j % half]

    return _func(x, cos, sin, te.compute((length, width), value, name="Y"))


def int8_matmul(n: int, k: int, m: int) -> Any:
    """C = A · B of int8 matrices, accumulated in int32."""
    a, b = _input(n, k, name="A", dtype="int8"), _input(k, m, name="B", dtype="int8")
    r = te.reduce_axis((0, k), name="k")
    return _func(
        a,
        b,
        te.compute((n, m), lambda i, j: te.sum(a[i, r].astype("int32") * b[r, j].astype("int32"), axis=r), name="C"),
    )


def _sizes(make: Callable[..., Any], real: tuple[Any, ...], small: tuple[Any, ...], **more: Any) -> Callable[..., Any]:
    return lambda *, small_size=False: make(*(small if small_size else real), **more)


OPERATORS: dict[str, Callable[..., Any]] = {
    "matmul": _sizes(matmul, (512, 512, 512), (12, 10, 18)),
    "matmul_odd": _sizes(matmul, (77, 113, 53), (7, 5, 13)),
    "matvec": _sizes(matmul, (1, 1000, 640), (1, 12, 20)),
    "dense_bias_relu": _sizes(dense, (128, 768, 3072), (8, 6, 20)),
    "batch_matmul": _sizes(batch_matmul, (12, 128, 64, 128), (3, 6, 4, 8)),
    "conv1d": _sizes(conv1d, (64, 256, 128), (4, 12, 6)),
    "conv2d_3x3": _sizes(conv2d, (64, 56, 64), (4, 8, 6), relu=True),
    "conv2d_1x1": _sizes(conv2d, (256, 14, 1024, 1), (6, 6, 8, 1)),
    "conv2d_7x7_strided": _sizes(conv2d, (3, 224, 64, 7), (3, 11, 4, 7), stride=2),
    "conv2d_strided": _sizes(conv2d, (64, 56, 128), (4, 9, 6), stride=2),
    "conv2d_dilated": _sizes(conv2d, (32, 28, 48), (4, 9, 6), dilation=2, padding=2),
    "conv2d_odd": _sizes(conv2d, (13, 53, 7), (3, 7, 5), relu=True),
    "conv2d_unpadded": _sizes(conv2d, (32, 30, 64), (4, 8, 6), padding=0),
    "conv2d_nhwc": _sizes(conv2d_nhwc, (64, 56, 64), (4, 8, 6)),
    "conv2d_nhwc_strided": _sizes(conv2d_nhwc, (32, 28, 64), (4, 9, 6), stride=2),
    "conv2d_grouped": _sizes(grouped, (64, 28, 64, 4), (4, 6, 8, 2)),
    "depthwise": _sizes(depthwise, (144, 56), (6, 8)),
    "depthwise_strided": _sizes(depthwise, (96, 56, 2), (6, 9, 2)),
    "depthwise_nhwc": _sizes(depthwise_nhwc, (144, 56), (16, 8)),
    "conv3d": _sizes(conv3d, (16, 8, 28, 32), (2, 4, 6, 4)),
    "conv2d_transposed": _sizes(transposed, (256, 8, 128), (4, 4, 6)),
    "max_pool": _sizes(pool, (64, 112, "max"), (4, 8, "max")),
    "avg_pool": _sizes(pool, (96, 28, "avg", 2, 0), (4, 8, "avg", 2, 0)),
    "global_pool": _sizes(global_pool, (512, 7), (6, 5)),
    "softmax": _sizes(softmax, (1536, 128), (6, 12)),
    "softmax_3d": _sizes(softmax, (4, 64, 77), (2, 3, 10)),
    "log_softmax": _sizes(log_softmax, (64, 1000), (6, 12)),
    "layer_norm": _sizes(layer_norm, (128, 768), (6, 12)),
    "batch_norm": _sizes(batch_norm, (64, 56), (4, 6)),
    "sum_rows": _sizes(reduction, ((512, 768), 1), ((6, 24), 1)),
    "sum_columns": _sizes(reduction, ((512, 768), 0), ((6, 24), 0)),
    "max_middle": _sizes(reduction, ((16, 77, 113), 1), ((3, 10, 5), 1), kind="max"),
    "sum_all": _sizes(reduction, ((256, 320), None), ((6, 8), None)),
    "broadcast_chain": _sizes(broadcast_chain, (512, 768), (6, 10)),
    "transpose": _sizes(transpose, (12, 64, 128), (2, 6, 10)),
    "split_heads": _sizes(split_heads, (64, 4, 64), (5, 3, 4)),
    "merge_heads": _sizes(merge_heads, (64, 4, 64), (5, 3, 4)),
    "patches": _sizes(patches, (96, 14), (5, 3)),
    "gather": _sizes(gather, (30522, 256, 64), (12, 6, 5)),
    "gather_repeated": _sizes(gather, (128, 64, 1024), (4, 6, 10)),
    "concat": _sizes(concat, (64, 256, 192), (4, 6, 5)),
    "grouped_by_three": _sizes(grouped, (12, 14, 36, 3), (6, 5, 9, 3)),
    "grouped_nhwc": _sizes(grouped_nhwc, (32, 28, 64, 4), (4, 6, 8, 2)),
    "einsum": _sizes(einsum, (8, 12, 8, 12, 8), (2, 3, 2, 3, 2)),
    "rms_norm": _sizes(rms_norm, (64, 768), (4, 10)),
    "upsample": _sizes(upsample, (32, 14), (2, 4)),
    "depth_to_space": _sizes(depth_to_space, (16, 14), (2, 3)),
    "gather_nd": _sizes(gather_nd, (100, 50, 64), (6, 5, 4)),
    "rotated": _sizes(rotated, (64, 64), (4, 8)),
    "int8_matmul": _sizes(int8_matmul, (64, 128, 64), (6, 8, 4)),
    "ones": _sizes(conv2d, (1, 1, 1, 1), (1, 1, 1, 1), relu=True),
    "sum_vector": _sizes(reduction, ((1000,), None), ((12,), None)),
}
