"""Allocate buffers beside guard zones, to detect kernels that write or read out of bounds.

The input is contents or a shape, and a device. The output is TVM tensors, and after a call a description of forbidden
writes. On this machine's CPU, zones with a known pattern lie before every buffer and after every output, and inputs are
compared with their contents. In processes of candidates, the memory behind the last page of an input, or behind an
output's zone, cannot be accessed: reading it ends the process, as it may in a model, where it need not exist. On GPUs
and servers, a zone lies after each output only: kernels accept no tensor there that begins inside an allocation, and
reading inputs back would cost as much as sending them.

The pattern is NaN in every float type, so a kernel that reads out of bounds and uses the value is wrong, too. Each of
up to fifteen buffers has its own pattern, so copying one zone to another is detected.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.hardware import huge_pages

ZONE = 2**16
"""Size of a zone on this machine, bytes: several rows of a tile. Chosen by hand."""

_FAR_ZONE = 2**12
"""Size of a zone on other devices, bytes. Chosen by hand; smaller, since it is sent there and back."""

_PATTERNS = 15
"""Number of patterns of two bytes, 0xFFF1 … 0xFFFF. Repeated, they are NaN in float64 and all narrower types."""

_PAGE = mmap.PAGESIZE
"""Size of a page, bytes."""
_FENCE = 2**22
"""Size of the memory behind a buffer that cannot be accessed, bytes: rows of a large tensor. Chosen by hand; it takes
addresses only."""
_START = 64
"""Offset of a buffer in its page, bytes, as TVM's allocator and the C library place large ones.

Kernels rely on a multiple of 64."""

_CPU = 1
"""DLPack's number for this machine's CPU."""


class GuardedBuffer:
    """Buffer on this machine's CPU with a zone before and after it.

    Args:
        shape: Shape of the buffer.
        dtype: Dtype of the buffer.
        number: Number of the buffer among those of a call, which determines its pattern.
        fenced: Whether the memory behind the zone after it cannot be accessed. The zone of one that is only read ends
            with the buffer's last page then.
        only_read: Whether a call must not write to it.

    Attributes:
        tensor: TVM tensor of the buffer.
        bytes: Contents as a NumPy array of uint8.
    """

    def __init__(
        self, shape: Sequence[int], dtype: str, number: int, *, fenced: bool = False, only_read: bool = False
    ) -> None:
        size, behind = _size(shape, dtype), 0 if fenced and only_read else ZONE
        length = ZONE + _PAGE + size + behind
        raw = _fenced(length - _PAGE + _START) if fenced else np.empty(length, np.uint8)
        start = ZONE + (_START - raw.ctypes.data - ZONE) % _PAGE
        end = start + size + behind if behind else len(raw)
        self.bytes = raw[start : start + size]
        self._zones = {"before": raw[start - ZONE : start], "after": raw[start + size : end]}
        self._pattern = _pattern(number % _PATTERNS, ZONE)
        for zone in self._zones.values():
            zone[:] = self._pattern[: len(zone)]
        self.tensor: Any = _tvm.runtime.from_dlpack(self.bytes)._create_view(tuple(shape), dtype)

    @property
    def damage(self) -> str:
        """Zones that were written to: "before it", "after it" or "before it and after it"; empty if none was."""
        return " and ".join(
            f"{place} it" for place, zone in self._zones.items() if not np.array_equal(zone, self._pattern[: len(zone)])
        )

    def numbers(self) -> Any:
        """Return its contents as an array."""
        return self.tensor.numpy()


class _FarBuffer:
    """Buffer on another device with a zone after it."""

    def __init__(self, contents: Any, dtype: str, number: int, device: Any) -> None:
        self._shape, self._dtype = contents.shape, contents.dtype
        self._pattern = _pattern(number % _PATTERNS, _FAR_ZONE)
        self._raw = _tvm.runtime.tensor(np.concatenate([_bytes_of(contents), self._pattern]), device)
        self.tensor: Any = self._raw._create_view(contents.shape, dtype)

    @cached_property
    def _fetched(self) -> Any:
        """The buffer and its zone as an array of bytes, read once after the call."""
        return self._raw.numpy()

    @property
    def damage(self) -> str:
        """See GuardedBuffer.damage; only valid after the call."""
        return "" if np.array_equal(self._fetched[-_FAR_ZONE:], self._pattern) else "after it"

    def numbers(self) -> Any:
        """See GuardedBuffer.numbers; only valid after the call."""
        return self._fetched[:-_FAR_ZONE].view(self._dtype).reshape(self._shape)


class Buffers:
    """Buffers of one call on a device.

    Args:
        device: TVM's device.
        fenced: Whether reading behind a buffer on this machine's CPU may end the process, see the module.
    """

    def __init__(self, device: Any, *, fenced: bool = False) -> None:
        self._device = device
        self._fenced = fenced
        self._near = device.dlpack_device_type() == _CPU
        self._known: list[tuple[str, GuardedBuffer | _FarBuffer, Any]] = []

    def filled(self, contents: Any, dtype: str, name: str, *, constant: bool = False) -> Any:
        """Return a tensor with the contents of an array; the call must not change it if it is `constant`."""
        number = len(self._known)
        if not self._near and constant:
            return _tvm.runtime.tensor(contents, self._device)
        if not self._near:
            far = _FarBuffer(contents, dtype, number, self._device)
            self._known.append((name, far, None))
            return far.tensor
        buffer = GuardedBuffer(contents.shape, dtype, number, fenced=self._fenced, only_read=constant)
        buffer.tensor.copyfrom(np.asarray(contents, order="C"))
        self._known.append((name, buffer, contents if constant else None))
        return buffer.tensor

    def mapped(self, contents: Any, dtype: str, name: str) -> Any:
        """Return a tensor with the contents of a mapped file, for functions that pack it before the call.

        On this machine's CPU it is the mapping itself, since copying a large constant takes longer than a call.
        """
        if self._near and contents.size and contents.dtype == dtype and contents.flags.c_contiguous:
            return _tvm.runtime.from_dlpack(contents)
        return self.filled(contents.astype(dtype, copy=False), dtype, name, constant=True)

    def copied(self, tensor: Any, name: str, *, constant: bool = False) -> Any:
        """Return a copy of a TVM tensor on this machine's CPU; the call must not change it if it is `constant`."""
        buffer = GuardedBuffer(
            tensor.shape, str(tensor.dtype), len(self._known), fenced=self._fenced, only_read=constant
        )
        buffer.tensor.copyfrom(tensor)
        self._known.append((name, buffer, tensor if constant else None))
        return buffer.tensor

    def empty(self, shape: Sequence[int], dtype: str, name: str) -> Any:
        """Return a tensor whose contents are arbitrary."""
        if not self._near:
            return _tvm.runtime.empty(tuple(shape), dtype, self._device)
        buffer = GuardedBuffer(shape, dtype, len(self._known), fenced=self._fenced)
        self._known.append((name, buffer, None))
        return buffer.tensor

    def numbers(self, tensor: Any) -> Any:
        """Return a tensor's contents after the call as an array; None if the tensor is not guarded."""
        return next((buffer.numbers() for _, buffer, _ in self._known if buffer.tensor is tensor), None)

    def damage(self) -> str:
        """Return a description of the call's first forbidden write; empty if there is none."""
        for name, buffer, contents in self._known:
            if zones := buffer.damage:
                return f"it writes outside of {name}, {zones}"
            if contents is not None and not _equal(_bytes_of(buffer.tensor), _bytes_of(contents)):
                return f"it changes its input {name}"
        return ""


def _fenced(size: int) -> Any:
    """Return zeros that fill at least `size` bytes to the end of a page. What is behind cannot be accessed.

    They are in huge pages, as a model's constants are.
    """
    pages = -(-size // _PAGE) * _PAGE
    memory = np.frombuffer(huge_pages.memory(pages + _FENCE), np.uint8)
    if _mprotect(memory.ctypes.data + pages, _FENCE, _NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect failed")
    return memory[:pages]


_NO_ACCESS = 0
"""PROT_NONE of sys/mman.h."""

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _size(shape: Sequence[int], dtype: str) -> int:
    """Return the size of a buffer, at least 1 byte."""
    return max(1, -(-_tvm.bits(dtype) // 8) * int(np.prod(shape, dtype=np.int64)))


@cache
def _pattern(kind: int, size: int) -> Any:
    """Return `size` bytes, an even number, of a pattern. The array is shared."""
    pattern = np.tile(np.array([0xF1 + kind, 0xFF], np.uint8), size // 2)
    pattern.setflags(write=False)
    return pattern


def _equal(some: Any, others: Any) -> bool:
    """Return whether arrays of bytes are equal. Words of 8 bytes take half as long as bytes."""
    whole = some.size // 8 * 8
    words = (array[:whole].view(np.uint64) for array in (some, others))
    return np.array_equal(*words) and np.array_equal(some[whole:], others[whole:])


def _bytes_of(contents: Any) -> Any:
    """Return the bytes of an array or of a TVM tensor on this machine's CPU, without a copy if it is contiguous."""
    if isinstance(contents, np.ndarray):
        return np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
    dtype = str(contents.dtype)
    if not contents.is_contiguous() or (_tvm.bits(dtype) % 8 and dtype != "bool"):
        return _bytes_of(contents.numpy())
    size = int(np.prod(contents.shape, dtype=np.int64)) * -(-_tvm.bits(dtype) // 8)
    return np.from_dlpack(contents._create_view((size,), "uint8"))
