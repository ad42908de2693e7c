"""Notice that weights are not those that were compiled in.

In: the weights of a graph when it was compiled, and the graph's inputs at every call. Out: whether they are the same.

Every call compares what is cheap: the tensors, their version counters, which PyTorch increments at a change in place,
where their memory is, and one word of each. Changes through `.data` and to tensors of inference mode increment no
counter: if they change all elements, as moving averages and merged adapters do, a changed word shows them at the next
call. For changes of single elements checksums of all memory are compared in turns, a piece at a time. That takes about
1 % of the time, so a pass over 500 MB takes about 50 s, and until then such a change is not noticed.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Sequence
from typing import Any

_PIECE = 2**18
"""Bytes compared at a time by checksums: 0.2 ms."""

_SHARE = 0.01
"""Of the time that checksums may take."""

_WORDS = 4
"""Words of a weight that are compared, one at a call."""


class WeightGuard:
    """Compares weights with what they were when this was made.

    Args:
        weights: The tensors, by their places among a graph's inputs.
        by_content: Whether changes are noticed that PyTorch does not count."""

    def __init__(self, weights: Sequence[tuple[int, Any]], *, by_content: bool = True) -> None:
        self._known = [(place, tensor, _version(tensor), tensor.data_ptr()) for place, tensor in weights]
        self._words: list[tuple[list[Any], list[int]]] = []
        self._pieces: list[tuple[int, int, int]] = []
        self._turn = self._next_piece = 0
        self._changed = False
        self._due = time.monotonic()
        if by_content:
            regions = [region for _, tensor in weights if (region := _region(tensor)) is not None]
            self._words = [_words(regions, index) for index in range(_WORDS)]
            self._pieces = [
                (start + offset, size := min(_PIECE, length - offset), _checksum(start + offset, size))
                for start, length in regions
                for offset in range(0, length, _PIECE)
            ]

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether the weights among a graph's inputs are still the same, as far as a call can tell."""
        for place, tensor, _, _ in self._known:
            if inputs[place] is not tensor:
                return False
        return self.hold()

    def hold(self) -> bool:
        """Whether the tensors themselves are unchanged, as far as a call can tell. Once changed they stay so."""
        self._changed = self._changed or not self._still_hold()
        return not self._changed

    def _still_hold(self) -> bool:
        try:
            for _, tensor, version, address in self._known:
                if tensor.data_ptr() != address or _version(tensor) != version:
                    return False
        except RuntimeError:  # its storage is gone
            return False
        if not self._words:
            return True
        self._turn = (self._turn + 1) % _WORDS
        cells, values = self._words[self._turn]
        return [cell.value for cell in cells] == values and self._next_checksums_hold()

    def _next_checksums_hold(self) -> bool:
        """Whether the next pieces are unchanged, if enough time has gone by since the last ones."""
        if time.monotonic() < self._due:
            return True
        started = time.thread_time()  # not counting the time in which other processes run
        compared, same = 0, True
        for _ in self._pieces:
            start, size, value = self._pieces[self._next_piece]
            self._next_piece = (self._next_piece + 1) % len(self._pieces)
            same = same and _checksum(start, size) == value
            compared += size
            if compared >= _PIECE:
                break
        self._due = time.monotonic() + (time.thread_time() - started) / _SHARE
        return same


def _version(tensor: Any) -> int:
    """How often PyTorch has counted a change in place; 0 for tensors of inference mode, which it does not count."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _region(tensor: Any) -> tuple[int, int] | None:
    """The address and bytes of a tensor's elements; None for one that is empty, or has gaps between elements."""
    import torch

    dense = tensor.layout is torch.strided and torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)
    if not dense or tensor.device.type != "cpu" or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _words(regions: Sequence[tuple[int, int]], index: int) -> tuple[list[Any], list[int]]:
    """A word of each region, and its value now; for each index at another place."""
    cells = [_word(start, size, index) for start, size in regions]
    return cells, [cell.value for cell in cells]


def _word(start: int, size: int, index: int) -> Any:
    for kind in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint16):
        width = ctypes.sizeof(kind)
        if size >= width and start % width == 0:
            return kind.from_address(start + (size // width - 1) * index // (_WORDS - 1) * width)
    return ctypes.c_uint8.from_address(start + (size - 1) * index // (_WORDS - 1))


def _checksum(start: int, size: int) -> int:
    return zlib.crc32((ctypes.c_char * size).from_address(start))
