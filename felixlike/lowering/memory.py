"""Buffers and loads as they lie in memory."""

from __future__ import annotations

import math
from typing import Any


def place_of(buffer: Any, indices: Any) -> Any:
    """Which element of a buffer indices stand for, counted in the order of memory."""
    place: Any = 0
    for index, extent in zip(indices, buffer.shape, strict=True):
        place = place * extent + index
    return place


def bytes_of(buffer: Any) -> int:
    """Of a buffer's elements; its shape is numbers."""
    from felixlike import tvmlib

    return math.prod(int(extent) for extent in buffer.shape) * tvmlib.bits(buffer.dtype) // 8


def same_element(load: Any, other: Any) -> bool:
    """Whether two loads read the same element."""
    from felixlike import tvmlib

    return bool(load.source.same_as(other.source)) and tvmlib.structural_equal(load.indices, other.indices)
