"""Guard zones around buffers detect writes outside of them."""

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm
from felixlike.measure.check.guarded_buffers import ZONE, Buffers, GuardedBuffer


def in_memory(buffer: GuardedBuffer) -> Any:
    """Return the bytes of a buffer with its guard zones on both sides."""
    size = buffer.bytes.size + 2 * ZONE
    return np.lib.stride_tricks.as_strided(buffer._zones["before"], (size,), (1,))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int64", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (1000, 3)])
def test_buffers_are_aligned_and_hold_their_contents(dtype: str, shape: tuple[int, ...]) -> None:
    buffers = Buffers(_tvm.runtime.cpu())
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    tensor = buffers.filled(array, dtype, "X", constant=True)
    assert tuple(tensor.shape) == shape
    assert str(tensor.dtype) == dtype
    (_, buffer, _) = buffers._known[0]
    assert isinstance(buffer, GuardedBuffer)
    assert buffer.bytes.ctypes.data % 64 == 0
    np.testing.assert_array_equal(buffers.numbers(tensor), array)
    assert buffers.damage() == ""


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0, 4), (1000, 3)])
def test_files_are_mapped_and_writing_does_not_change_them(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """A bfloat16 constant, which the file has as float32, is copied."""
    array = np.arange(np.prod(shape)).reshape(shape).astype("float32" if dtype == "bfloat16" else dtype)
    np.save(tmp_path / "input.npy", array)
    buffers = Buffers(_tvm.runtime.cpu(), fenced=True)
    tensor = buffers.mapped(np.load(tmp_path / "input.npy", mmap_mode="c"), dtype, "W")
    assert (tuple(tensor.shape), str(tensor.dtype)) == (shape, dtype)
    contents = tensor.numpy()
    np.testing.assert_array_equal(contents, array.astype(contents.dtype))
    tensor.copyfrom(np.ones_like(contents))
    np.testing.assert_array_equal(tensor.numpy(), np.ones_like(contents))
    np.testing.assert_array_equal(np.load(tmp_path / "input.npy"), array)


@pytest.mark.parametrize(
    ("place", "words"),
    [(ZONE - 1, "before it"), (0, "before it"), (-ZONE, "after it"), (-1, "after it"), (ZONE, ""), (-ZONE - 1, "")],
)
def test_writes_to_the_first_and_last_byte_of_a_zone_are_detected(place: int, words: str) -> None:
    buffer = GuardedBuffer((7,), "int8", 0)
    in_memory(buffer)[place] = 3
    assert buffer.damage == words


def test_damage_names_both_zones() -> None:
    buffer = GuardedBuffer((7,), "int8", 0)
    in_memory(buffer)[:] = 0
    assert buffer.damage == "before it and after it"


def test_zones_of_two_buffers_differ() -> None:
    """A copy of too many rows overwrites the zones of one buffer with those of another."""
    source, copied = GuardedBuffer((4,), "float32", 0), GuardedBuffer((4,), "float32", 1)
    in_memory(copied)[:] = in_memory(source)
    assert copied.damage == "before it and after it"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("number", range(15))
def test_zones_are_nan(dtype: Any, number: int) -> None:
    assert np.isnan(GuardedBuffer((1,), "int8", number)._zones["before"].view(dtype)).all()


@pytest.mark.parametrize("shape", [(), (1000,), (1008,), (1009,), (70_000,)])
def test_memory_behind_a_fenced_input_cannot_be_read(shape: tuple[int, ...]) -> None:
    """The end of the last page is readable. Inputs of 1008 elements end with one."""
    buffers = Buffers(_tvm.runtime.cpu(), fenced=True)
    buffers.filled(np.ones(shape, np.float32), "float32", "X", constant=True)
    ((_, buffer, _),) = buffers._known
    assert isinstance(buffer, GuardedBuffer)
    end = buffer.bytes.ctypes.data + buffer.bytes.size
    behind = -(-end // 4096) * 4096
    assert (_reading(end - 1), _reading(behind - 1), _reading(behind)) == (0, 0, signal.SIGSEGV)
    assert buffer.damage == ""


@pytest.mark.parametrize("place", [-ZONE, -1])
def test_fenced_outputs_have_a_whole_zone_behind_them(place: int) -> None:
    buffer = GuardedBuffer((7,), "int8", 0, fenced=True)
    in_memory(buffer)[place] = 3
    assert buffer.damage == "after it"


def _reading(address: int) -> int:
    """Return the number of the signal that ends a process which reads a byte; 0 if none does."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(address, 1)
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def test_changed_inputs_are_reported() -> None:
    buffers = Buffers(_tvm.runtime.cpu())
    array = np.array([1.0, np.nan, -0.0], np.float32)
    constant = buffers.filled(array, "float32", "A", constant=True)
    updated = buffers.filled(array, "float32", "B")
    updated.copyfrom(np.zeros(3, np.float32))
    assert buffers.damage() == ""
    constant.copyfrom(np.array([1.0, np.nan, 0.0], np.float32))
    assert buffers.damage() == "it changes its input A"
