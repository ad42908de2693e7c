"""Run small copies of PyTorch on the calling thread only.

OpenMP's threads spin for milliseconds after each piece of work, on the cores that TVM's workers need next. A layer
whose input they had copied took 14 times as long. The number of OpenMP threads is a setting of the calling thread
(OpenMP 5.2, §2.4), so other threads are not affected.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from felixlike._util.torch_compat import c_library


@contextmanager
def on_this_thread() -> Iterator[None]:
    """Set OpenMP to one thread for the calling thread inside the block. Without OpenMP in PyTorch, do nothing."""
    import torch

    put = _setter()
    count = torch.get_num_threads()  # initializes it, so that PyTorch does not set it later
    put(1)
    try:
        yield
    finally:
        put(count)


def contiguous_copy(tensor: Any) -> Any:
    """Return a contiguous, aligned copy of a tensor, made by the calling thread."""
    import torch

    with on_this_thread():
        return torch.Tensor.clone(tensor, memory_format=torch.contiguous_format)


@functools.cache
def _setter() -> Callable[[int], object]:
    """Return omp_set_num_threads of PyTorch's own copy of OpenMP, as other libraries may have loaded another copy."""
    try:
        library = ctypes.PyDLL(c_library())  # symbols are resolved in the libraries it is linked with
        put = library.omp_set_num_threads
    except (OSError, AttributeError):
        return lambda count: None
    put.argtypes, put.restype = (ctypes.c_int,), None
    return put
