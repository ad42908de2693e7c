"""Buffers and loads as they lie in memory."""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, TirExpr


def place_of(buffer: Buffer, indices: Any) -> TirExpr:
    """Which element of a buffer indices stand for, counted in the order of memory."""
    place: Any = 0
    for index, extent in zip(indices, buffer.shape, strict=True):
        place = place * extent + index
    return place


def bytes_of(buffer: Buffer) -> int:
    """Of a buffer's elements; its shape is numbers."""
    return math.prod(int(extent) for extent in buffer.shape) * _tvm.bits(buffer.dtype) // 8


def same_element(load: TirExpr, other: Any) -> bool:
    """Whether two loads read the same element."""
    return bool(load.source.same_as(other.source)) and _tvm.structural_equal(load.indices, other.indices)
