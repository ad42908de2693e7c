"""Memory for constants in huge pages, where the system has them.

A call reads all weights of a network once, so that the processor knows none of their pages' addresses. With pages of
4 KiB, looking them up took 6 to 10 % of a call of DCGAN on Zen 5, and up to 5 % of one of ViT-B/16.

Input: a size, or a shape and a dtype. Output: private memory, or a tensor.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from typing import Any

from felixlike import _tvm

_PAGE = 1 << 21
"""Size of a huge page on x86-64, bytes. Smaller memory cannot have one."""


def memory(size: int) -> mmap.mmap:
    """Return new private memory of zeros, which starts at a page boundary.

    Args:
        size: Bytes, at least 1.

    Returns:
        The memory, in huge pages if the system has them for programs that ask.
    """
    new = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            new.madvise(mmap.MADV_HUGEPAGE)
    return new


def empty(shape: Sequence[int], dtype: str) -> Any:
    """Return a new tensor of TVM on the CPU with unknown values, in huge pages if it fills one.

    Args:
        shape: Its sizes.
        dtype: A dtype that PyTorch has, too.
    """
    import torch

    kind = getattr(torch, dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _PAGE:
        return _tvm.runtime.empty(shape, dtype)
    return _tvm.runtime.from_dlpack(torch.frombuffer(memory(size), dtype=kind).reshape(tuple(shape)))
