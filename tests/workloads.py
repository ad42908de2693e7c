"""Define small and medium operators as PrimFuncs in TVM's tensor expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.operators import OPERATORS

from felixlike import _tvm
from felixlike.frontend.rewrites.split_deconvolution import Dimension, phased

te, topi = _tvm.te, _tvm.topi


def matmul(n: int = 128, k: int = 64, m: int = 96, *, relu: bool = False) -> Any:
    """C = A · B, optionally with ReLU."""
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    if not relu:
        return te.create_prim_func([a, b, c])
    d = te.compute((n, m), lambda i, j: te.max(c[i, j], 0.0), name="D")
    return te.create_prim_func([a, b, d])


def conv2d(
    channels: int = 16, size: int = 14, filters: int = 32, kernel: int = 3, stride: int = 1, padding: int = 1
) -> Any:
    """A 2-D convolution in NCHW with bias-free ReLU. Padding is a separate block."""
    x = te.placeholder((1, channels, size, size), name="X")
    w = te.placeholder((filters, channels, kernel, kernel), name="W")
    c = topi.nn.conv2d_nchw(x, w, stride, padding, 1)
    return te.create_prim_func([x, w, topi.nn.relu(c)])


def depthwise(channels: int = 24, size: int = 14, kernel: int = 3) -> Any:
    """A depthwise convolution."""
    x = te.placeholder((1, channels, size, size), name="X")
    w = te.placeholder((channels, 1, kernel, kernel), name="W")
    return te.create_prim_func([x, w, topi.nn.depthwise_conv2d_nchw(x, w, 1, kernel // 2, 1)])


def by_phases(channels: int = 8, size: int = 6, filters: int = 16) -> Any:
    """A transposed convolution, 4×4 with stride 2, with weights laid out by phase."""
    x = te.placeholder((1, channels, size, size), name="X")
    w = te.placeholder((2, 2, filters, channels, 2, 2), name="W")
    dimension = Dimension(size=size, output=2 * size, taps=4, stride=2, padding=1)
    return te.create_prim_func([x, w, phased(x, w, [dimension] * 2, "float32")])


def softmax(rows: int = 24, columns: int = 36) -> Any:
    """Softmax along the last axis."""
    x = te.placeholder((rows, columns), name="X")
    return te.create_prim_func([x, topi.nn.softmax(x)])


def row_sum(rows: int = 12, columns: int = 60) -> Any:
    """The sum of each row."""
    x = te.placeholder((rows, columns), name="X")
    return te.create_prim_func([x, topi.sum(x, axis=1)])


def max_pool(channels: int = 8, size: int = 14) -> Any:
    """3×3 maximum with stride 2 and padding 1. Two of its three sketches fuse the window and split it again."""
    x = te.placeholder((1, channels, size, size), name="X")
    pooled = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max")
    return te.create_prim_func([x, pooled])


def average(channels: int = 4, size: int = 8) -> Any:
    """2×2 means. On GPUs one of its sketches computes sums inside a loop that threads share unevenly."""
    x = te.placeholder((1, channels, size, size), name="X")
    pooled = topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "avg")
    return te.create_prim_func([x, pooled])


def large_sum(rows: int = 1024, columns: int = 1024) -> Any:
    """The sum of all elements. Two of its three sketches fuse both loops, which have more values than are tried."""
    x = te.placeholder((rows, columns), name="X")
    return te.create_prim_func([x, topi.sum(x)])


def padded_product() -> Any:
    """A product with a border of zeros on one side."""
    a, b = te.placeholder((12, 8), name="A"), te.placeholder((8, 20), name="B")
    r = te.reduce_axis((0, 8), name="k")
    c = te.compute((12, 20), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return te.create_prim_func([a, b, topi.nn.pad(c, (0, 0), (1, 0), name="pad")])


def chain(rows: int = 30, columns: int = 50) -> Any:
    """relu(x) · 2 + y: inlined into one spatial block without variables."""
    x, y = te.placeholder((rows, columns), name="X"), te.placeholder((columns,), name="Y")
    a = te.compute((rows, columns), lambda i, j: te.max(x[i, j], 0.0), name="relu")
    b = te.compute((rows, columns), lambda i, j: a[i, j] * 2.0 + y[j], name="sum")
    return te.create_prim_func([x, y, b])


ALL: dict[str, Callable[[], Any]] = {
    "matmul": matmul,
    "matmul_relu": lambda: matmul(relu=True),
    "matmul_odd": lambda: matmul(7, 53, 13, relu=True),
    "matmul_large_primes": lambda: matmul(67, 113, 2, relu=True),
    "conv2d": conv2d,
    "conv2d_strided": lambda: conv2d(stride=2),
    "conv2d_1x1": lambda: conv2d(kernel=1, padding=0),
    "conv2d_5x5": lambda: conv2d(channels=6, size=15, filters=10, kernel=5, padding=2),
    "conv2d_grouped": lambda: OPERATORS["conv2d_grouped"](small_size=True),
    "conv2d_transposed": lambda: OPERATORS["conv2d_transposed"](small_size=True),
    "depthwise": depthwise,
    "avg_pool": average,
    "softmax": softmax,
    "row_sum": row_sum,
    "max_pool": max_pool,
    "sum_all": lambda: large_sum(6, 8),
    "merge_heads": lambda: OPERATORS["merge_heads"](small_size=True),
    "split_heads": lambda: OPERATORS["split_heads"](small_size=True),
    "patches": lambda: OPERATORS["patches"](small_size=True),
    "chain": chain,
    "gather": lambda: OPERATORS["gather_repeated"](small_size=True),
}

SLOW = ("conv2d_grouped", "conv2d_transposed")
"""Those in which a combination of compute locations takes a second to replay and to compare with TVM."""
