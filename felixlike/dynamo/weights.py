"""Detect changes of weights after compilation.

Inputs: the weights of a graph when it was compiled, and the graph's inputs at every call. Output: whether the weights
are the same.

Every call compares the tensors, their version counters, which PyTorch increments for changes in place, their addresses,
and one word of each. Changes through `.data` and of inference-mode tensors do not increment the counter. If they change
all elements, as moving averages and merged adapters do, the next call sees a changed word. Changes of single elements
are detected by checksums of all memory, compared piece by piece. This takes about 1 % of the time, so a pass over 500
MB takes about 50 s, until which such a change is not detected.
"""

from __future__ import annotations

import ctypes
import sys
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike._util.torch_compat import counters, is_dense


@dataclass(frozen=True, slots=True)
class Watching:
    """How weights are compared. All values are chosen by hand.

    Attributes:
        words: Number of words of a weight that are compared, one per call in turn.
        piece: Bytes per checksum, which takes 0.2 ms.
        share: Upper limit on the share of the time that checksums take, 0 to 1.
        changes: Number of changes of weights after which a graph is no longer compiled but run by PyTorch.
        sets: Number of sets of weights for which a graph is compiled. Equal layers share a graph.
    """

    words: int = 4
    piece: int = 2**18
    share: float = 0.01
    changes: int = 8
    sets: int = 64


WATCHING = Watching()


class WeightGuard:
    """Compare weights with their state at construction.

    Args:
        weights: (index among a graph's inputs, tensor) of each weight.
        by_content: Whether to compare contents too, to detect changes that PyTorch does not count.
    """

    def __init__(self, weights: Sequence[tuple[int, Any]], *, by_content: bool = True) -> None:
        self._places = [place for place, _ in weights]
        self._tensors = [tensor for _, tensor in weights]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._versions = counters(self._counted)
        self._words: list[tuple[list[Any], list[int]]] = []
        self._pieces: list[tuple[int, int, int]] = []
        self._turn = self._next_piece = 0
        self._changed = False
        self._due = time.monotonic()
        if by_content:
            regions = [region for _, tensor in weights if (region := _region(tensor)) is not None]
            self._words = [_words(regions, index) for index in range(WATCHING.words)]
            self._pieces = [
                (start + offset, size := min(WATCHING.piece, length - offset), _checksum(start + offset, size))
                for start, length in regions
                for offset in range(0, length, WATCHING.piece)
            ]

    def are_in(self, inputs: Sequence[Any]) -> bool:
        """Return whether a graph's inputs contain these tensors, changed or not."""
        for place, tensor in zip(self._places, self._tensors):  # noqa: B905, SIM110  every call runs it, and it is faster
            if inputs[place] is not tensor:
                return False
        return True

    def hold(self) -> bool:
        """Return whether the tensors are unchanged, as far as detected so far. After a change it is always False."""
        if not self._changed and not self._still_hold():
            self._changed = True
        return not self._changed

    def _still_hold(self) -> bool:
        """Compare addresses, version counters, one word of each weight, and the next checksums."""
        try:
            if [tensor.data_ptr() for tensor in self._tensors] != self._addresses:
                return False
            if counters(self._counted) != self._versions:
                return False
        except RuntimeError:  # its storage was freed, or it has become an inference-mode tensor
            return False
        if not self._words:
            return True
        self._turn = (self._turn + 1) % WATCHING.words
        cells, values = self._words[self._turn]
        return [cell.value for cell in cells] == values and self._next_checksums_hold()

    def _next_checksums_hold(self) -> bool:
        """Return whether the next pieces are unchanged; skip them if the last ones were compared too recently."""
        if time.monotonic() < self._due:
            return True
        started = time.thread_time()  # without the time of other threads and processes
        compared, same = 0, True
        for _ in self._pieces:
            start, size, value = self._pieces[self._next_piece]
            self._next_piece = (self._next_piece + 1) % len(self._pieces)
            same = same and _checksum(start, size) == value
            compared += size
            if compared >= WATCHING.piece:
                break
        self._due = time.monotonic() + (time.thread_time() - started) / WATCHING.share
        return same


def unused(guards: Sequence[WeightGuard]) -> list[WeightGuard]:
    """Return those with a tensor to which nothing else in Python refers.

    References are counted, because a tensor with weak references cannot be swapped (`torch.utils.swap_tensors`).
    """
    own = Counter(id(tensor) for guard in guards for tensor in (*guard._tensors, *guard._counted))
    return [guard for guard in guards if any(count <= own[identity] for identity, count in _references(guard._tensors))]


def _references(tensors: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the id of each tensor and the number of references to it, without those of this function."""
    return [(id(tensor), sys.getrefcount(tensor) - _COUNTING) for tensor in tensors]


_COUNTING = 0
_COUNTING = _references([object()])[0][1] - 1
"""References that counting takes: the variable and, before Python 3.14, the argument."""


def _region(tensor: Any) -> tuple[int, int] | None:
    """Return a tensor's address and size in bytes; None if it is empty, not dense or not on the CPU."""
    import torch

    dense = tensor.layout is torch.strided and is_dense(tensor)
    if not dense or tensor.device.type != "cpu" or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _words(regions: Sequence[tuple[int, int]], index: int) -> tuple[list[Any], list[int]]:
    """Return a word of each region and its current value; the index selects the position."""
    cells = [_word(start, size, index) for start, size in regions]
    return cells, [cell.value for cell in cells]


def _word(start: int, size: int, index: int) -> Any:
    """Return a word of a region, as large as its size and alignment allow, at most 8 bytes."""
    for kind in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint16):
        width = ctypes.sizeof(kind)
        if size >= width and start % width == 0:
            return kind.from_address(start + (size // width - 1) * index // (WATCHING.words - 1) * width)
    return ctypes.c_uint8.from_address(start + (size - 1) * index // (WATCHING.words - 1))


def _checksum(start: int, size: int) -> int:
    """Return the CRC-32 of memory."""
    return zlib.crc32((ctypes.c_char * size).from_address(start))
