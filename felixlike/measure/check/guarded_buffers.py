"""Buffers beside zones of a known pattern, which show whether a kernel wrote outside of them.

In: contents or a shape, for a device. Out: TVM tensors, and what a call did that it must not do. On this machine's CPU
a zone lies before and after every buffer, and inputs are compared with what they were. On GPUs and servers a zone lies
after each output: a kernel takes no tensor there that begins in the middle of an allocation, and reading inputs back
would cost as much as sending them.

The pattern is NaN in every float type, so a kernel that reads outside of a buffer and uses what it read is wrong, too.
Each of up to fifteen buffers has its own pattern: a kernel that moves one zone to another changes that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from felixlike import _tvm

ZONE = 2**16
"""Bytes before and after a buffer on this machine: several rows of a tile. Chosen by hand."""

_FAR_ZONE = 2**12
"""Bytes after an output elsewhere, which are sent there and back."""

_PATTERNS = 15
"""Of two bytes, 0xFFF0 + 1 … 15: the halves of a NaN of float64, which are NaN of the narrower types."""

_PAGE = 4096
_START = 64
"""Where in a page a buffer starts, bytes: where TVM's allocator and the C library put large ones. Kernels rely on a
multiple of 64."""

_CPU = 1
"""DLPack's number for this machine's CPU."""


class GuardedBuffer:
    """A buffer of this machine's CPU with a zone before and after it.

    tensor: for TVM.  bytes: its contents as a NumPy array of uint8."""

    def __init__(self, shape: Sequence[int], dtype: str, number: int) -> None:
        """number: of the buffer among those of a call."""
        size = _size(shape, dtype)
        raw = np.empty(size + 2 * ZONE + _PAGE, np.uint8)
        start = ZONE + (_START - raw.ctypes.data - ZONE) % _PAGE
        self.bytes = raw[start : start + size]
        self._zones = {"before": raw[start - ZONE : start], "after": raw[start + size : start + size + ZONE]}
        self._pattern = _pattern(number, ZONE)
        for zone in self._zones.values():
            zone[:] = self._pattern
        self.tensor: Any = _tvm.runtime.from_dlpack(self.bytes)._create_view(tuple(shape), dtype)

    @property
    def damage(self) -> str:
        """Say which zone was written to: "before it" or "after it", or both; empty if none was."""
        return " and ".join(
            f"{place} it" for place, zone in self._zones.items() if not np.array_equal(zone, self._pattern)
        )

    def numbers(self) -> Any:
        """Return its contents as an array."""
        return self.tensor.numpy()


class _FarBuffer:
    """A buffer of another device with a zone after it."""

    def __init__(self, contents: Any, dtype: str, number: int, device: Any) -> None:
        self._shape, self._dtype = contents.shape, contents.dtype
        self._pattern = _pattern(number, _FAR_ZONE)
        self._raw = _tvm.runtime.tensor(np.concatenate([_bytes_of(contents), self._pattern]), device)
        self.tensor: Any = self._raw._create_view(contents.shape, dtype)

    @cached_property
    def _fetched(self) -> Any:
        return self._raw.numpy()

    @property
    def damage(self) -> str:
        """As of GuardedBuffer, after the call."""
        return "" if np.array_equal(self._fetched[-_FAR_ZONE:], self._pattern) else "after it"

    def numbers(self) -> Any:
        """As of GuardedBuffer, after the call."""
        return self._fetched[:-_FAR_ZONE].view(self._dtype).reshape(self._shape)


class Buffers:
    """Makes the buffers of one call and remembers them."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._near = device.dlpack_device_type() == _CPU
        self._known: list[tuple[str, GuardedBuffer | _FarBuffer, Any]] = []

    def filled(self, contents: Any, dtype: str, name: str, *, constant: bool = False) -> Any:
        """Return a tensor with the contents of an array.  constant: the call must not change it."""
        number = len(self._known)
        if not self._near and constant:
            return _tvm.runtime.tensor(contents, self._device)
        if not self._near:
            far = _FarBuffer(contents, dtype, number, self._device)
            self._known.append((name, far, None))
            return far.tensor
        buffer = GuardedBuffer(contents.shape, dtype, number)
        buffer.tensor.copyfrom(np.asarray(contents, order="C"))
        self._known.append((name, buffer, contents if constant else None))
        return buffer.tensor

    def copied(self, tensor: Any, name: str, *, constant: bool = False) -> Any:
        """Return a copy of a TVM tensor of this machine's CPU.  constant: the call must not change it."""
        buffer = GuardedBuffer(tensor.shape, str(tensor.dtype), len(self._known))
        buffer.tensor.copyfrom(tensor)
        self._known.append((name, buffer, tensor if constant else None))
        return buffer.tensor

    def empty(self, shape: Sequence[int], dtype: str, name: str) -> Any:
        """Return a tensor whose contents are arbitrary."""
        if not self._near:
            return _tvm.runtime.empty(tuple(shape), dtype, self._device)
        buffer = GuardedBuffer(shape, dtype, len(self._known))
        self._known.append((name, buffer, None))
        return buffer.tensor

    def numbers(self, tensor: Any) -> Any:
        """Return what a tensor holds after the call as an array."""
        return next((buffer.numbers() for _, buffer, _ in self._known if buffer.tensor is tensor), None)

    def damage(self) -> str:
        """Say what the call did to memory that it must not write; empty if nothing."""
        for name, buffer, contents in self._known:
            if zones := buffer.damage:
                return f"it writes outside of {name}, {zones}"
            if contents is not None and not np.array_equal(_bytes_of(buffer.numbers()), _bytes_of(contents)):
                return f"it changes its input {name}"
        return ""


def _size(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a buffer, at least 1."""
    return max(1, -(-_tvm.bits(dtype) // 8) * int(np.prod(shape, dtype=np.int64)))


def _pattern(number: int, size: int) -> Any:
    return np.resize(np.array([0xF1 + number % _PATTERNS, 0xFF], np.uint8), size)


def _bytes_of(contents: Any) -> Any:
    """The bytes of an array or of a TVM tensor."""
    array = contents if isinstance(contents, np.ndarray) else contents.numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
