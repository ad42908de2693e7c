"""Run PyTorch's kernels on the calling thread only, such as small copies.

OpenMP's threads spin for milliseconds after each piece of work, on the cores that TVM's workers need next. A layer
whose input they had copied took 14 times as long. The number of OpenMP threads is a setting of the calling thread
(OpenMP 5.2, §2.4), so other threads are not affected. MKL, which computes FFTs, has a setting of its own: after
torch.set_num_threads it ignores OpenMP's.
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
    """Set OpenMP and MKL to one thread for the calling thread inside the block. Do nothing if PyTorch lacks them."""
    import torch

    put, put_mkl = _setters()
    count = torch.get_num_threads()  # initializes it, so that PyTorch does not set it later
    put(1)
    count_of_mkl = put_mkl(1)
    try:
        yield
    finally:
        put_mkl(count_of_mkl)
        put(count)


def contiguous_copy(tensor: Any) -> Any:
    """Return a contiguous, aligned copy of a tensor, made by the calling thread."""
    import torch

    with on_this_thread():
        return torch.Tensor.clone(tensor, memory_format=torch.contiguous_format)


@functools.cache
def _setters() -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """Return the functions that set the calling thread's number of threads in OpenMP and MKL.

    They are those of PyTorch's own copies, as other libraries may have loaded further ones. MKL's function returns the
    number before, 0 if the thread has none of its own.
    """
    return _function("omp_set_num_threads", None), _function("MKL_Set_Num_Threads_Local", ctypes.c_int)


def _function(name: str, returned: Any) -> Callable[[int], Any]:
    """Return a function of an int in PyTorch's libraries, or one that returns 0 if there is none of this name."""
    try:
        library = ctypes.PyDLL(c_library())  # symbols are resolved in the libraries it is linked with
        function = getattr(library, name)
    except (OSError, AttributeError):
        return lambda count: 0
    function.argtypes, function.restype = (ctypes.c_int,), returned
    return function  # type: ignore[no-any-return]
