"""Zones around buffers show what a kernel writes outside of them."""

from typing import Any

import numpy as np
import pytest

from felixlike import _tvm
from felixlike.measure.check.guarded_buffers import ZONE, Buffers, GuardedBuffer


def in_memory(buffer: GuardedBuffer) -> Any:
    """A buffer with its zones, as what wrote outside of it would reach them."""
    size = buffer.bytes.size + 2 * ZONE
    return np.lib.stride_tricks.as_strided(buffer._zones["before"], (size,), (1,))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int64", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (1000, 3)])
def test_buffers_are_aligned_and_hold_their_contents(dtype: str, shape: tuple[int, ...]) -> None:
    buffers = Buffers(_tvm.runtime.cpu())
    contents = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    tensor = buffers.filled(contents, dtype, "X", constant=True)
    assert tuple(tensor.shape) == shape
    assert str(tensor.dtype) == dtype
    (_, buffer, _) = buffers._known[0]
    assert isinstance(buffer, GuardedBuffer)
    assert buffer.bytes.ctypes.data % 64 == 0
    np.testing.assert_array_equal(buffers.numbers(tensor), contents)
    assert buffers.damage() == ""


@pytest.mark.parametrize(
    ("place", "words"),
    [(ZONE - 1, "before it"), (0, "before it"), (-ZONE, "after it"), (-1, "after it"), (ZONE, ""), (-ZONE - 1, "")],
)
def test_the_first_and_the_last_byte_of_each_zone(place: int, words: str) -> None:
    buffer = GuardedBuffer((7,), "int8", 0)
    in_memory(buffer)[place] = 3
    assert buffer.damage == words


def test_both_zones_at_once() -> None:
    buffer = GuardedBuffer((7,), "int8", 0)
    in_memory(buffer)[:] = 0
    assert buffer.damage == "before it and after it"


def test_a_zone_that_is_moved_into_another_shows() -> None:
    """As by a copy of too many rows."""
    source, copied = GuardedBuffer((4,), "float32", 0), GuardedBuffer((4,), "float32", 1)
    in_memory(copied)[:] = in_memory(source)
    assert copied.damage == "before it and after it"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("number", range(15))
def test_zones_are_nan(dtype: Any, number: int) -> None:
    assert np.isnan(GuardedBuffer((1,), "int8", number)._zones["before"].view(dtype)).all()


def test_inputs_must_stay_as_they_are() -> None:
    buffers = Buffers(_tvm.runtime.cpu())
    contents = np.array([1.0, np.nan, -0.0], np.float32)
    constant = buffers.filled(contents, "float32", "A", constant=True)
    updated = buffers.filled(contents, "float32", "B")
    updated.copyfrom(np.zeros(3, np.float32))
    assert buffers.damage() == ""
    constant.copyfrom(np.array([1.0, np.nan, 0.0], np.float32))
    assert buffers.damage() == "it changes its input A"
