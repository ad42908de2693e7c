"""Lay out the large constants of a model, or of all its parts, in one member of a saved file.

Input: tensors. Output: their offsets, and the bytes to write. Equal tensors are stored once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from felixlike.hardware import placement

ALIGNMENT = 64
"""Alignment of constants in bytes, which generated code may assume."""


def described(tensors: Sequence[Any]) -> list[dict[str, Any]]:
    """Return JSON data that describe tensors and identify their values."""
    return [
        {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "crc32": checksum}
        for tensor, checksum in zip(tensors, checksums(tensors), strict=True)
    ]


def checksums(tensors: Sequence[Any]) -> list[int]:
    """Return the checksums of contiguous CPU tensors."""
    return placement.concurrently(zlib.crc32, list(map(content_of, tensors)))


def content_of(tensor: Any) -> memoryview:
    """Return the memory of a contiguous CPU tensor."""
    import torch

    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


class Layout:
    """The content of the member.

    Attributes:
        pieces: The content in consecutive pieces; empty without constants.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], list[tuple[int, memoryview]]] = {}
        self.pieces: list[memoryview] = []
        self._size = 0

    def placed(self, tensors: Iterable[Any], descriptions: Iterable[dict[str, Any]]) -> list[int]:
        """Add tensors that are not there yet, and return the offset of each in bytes."""
        return [
            self._placed(content_of(tensor), description["crc32"])
            for tensor, description in zip(tensors, descriptions, strict=True)
        ]

    def _placed(self, content: memoryview, checksum: int) -> int:
        """Return the offset of some bytes."""
        import numpy as np

        alike = self._places.setdefault((checksum, len(content)), [])
        for offset, other in alike:
            if np.array_equal(np.asarray(content), np.asarray(other)):
                return offset
        offset = self._size + -self._size % ALIGNMENT
        self.pieces += [memoryview(bytes(offset - self._size)), content]
        self._size = offset + len(content)
        alike.append((offset, content))
        return offset
