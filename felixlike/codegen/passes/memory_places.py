"""Compute positions and sizes of buffers and loads in memory."""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, TirExpr


def place_of(buffer: Buffer, indices: Any) -> TirExpr:
    """Return the position of an element in a buffer, counted in memory order."""
    place: Any = 0
    for index, extent in zip(indices, buffer.shape, strict=True):
        place = place * extent + index
    return place


def bytes_of(buffer: Buffer) -> int:
    """Return the bytes of a buffer's elements. Its shape must be constant."""
    return math.prod(int(extent) for extent in buffer.shape) * _tvm.bits(buffer.dtype) // 8


def same_element(load: TirExpr, other: Any) -> bool:
    """Return whether two loads read the same element."""
    return bool(load.source.same_as(other.source)) and _tvm.structural_equal(load.indices, other.indices)
