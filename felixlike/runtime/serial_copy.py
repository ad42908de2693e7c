"""Have PyTorch do a small piece of work on the calling thread alone.

In: a block in which PyTorch copies tensors. Out: the same without PyTorch's other threads. OpenMP's threads look for
more work for milliseconds after each piece, on the cores that TVM's workers need next: a layer whose input they had
copied took 14 times as long. How many threads OpenMP has is a setting of the calling thread (OpenMP 5.2, §2.4), so
nobody else notices.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_this_thread() -> Iterator[None]:
    """Give OpenMP one thread for what the calling thread does in the block; nothing where PyTorch is without OpenMP."""
    import torch

    put = _setter()
    count = torch.get_num_threads()  # after which PyTorch does not set it by itself any more
    put(1)
    try:
        yield
    finally:
        put(count)


@functools.cache
def _setter() -> Callable[[int], object]:
    """OpenMP's function of PyTorch's own copy of it: another library's may be in the process, too."""
    import torch

    try:
        library = ctypes.PyDLL(torch._C.__file__)  # whose functions are looked for in what it was linked with
        put = library.omp_set_num_threads
    except (OSError, AttributeError):
        return lambda count: None
    put.argtypes, put.restype = (ctypes.c_int,), None
    return put
