"""Keep PyTorch's threads off the cores: run kernels on the calling thread only, or let idle threads sleep.

OpenMP's threads spin for milliseconds after each piece of work, on the cores that TVM's workers need next. A layer
whose input they had copied took 14 times as long. The number of OpenMP threads is a setting of the calling thread
(OpenMP 5.2, §2.4), so other threads are not affected. MKL, which computes FFTs, has a setting of its own: after
torch.set_num_threads it ignores OpenMP's.

GNU's OpenMP has no function that changes how long its threads spin. They do so for some microseconds only while there
are more of them than processors (`do_spin` in libgomp's config/linux/wait.h), so a further pool is kept asleep. With it
a small model and an operator of PyTorch in turns take 43 µs instead of 4 ms on two cores, and a step of GPT-2 14.4 ms
instead of 18.5. The operator alone takes some 10 µs longer.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from felixlike._util.torch_compat import c_library
from felixlike.hardware.probe import usable_processors


@contextmanager
def on_this_thread() -> Iterator[None]:
    """Set OpenMP and MKL to one thread for the calling thread inside the block. Do nothing if PyTorch lacks them."""
    import torch

    count = torch.get_num_threads()  # initializes it, so that PyTorch does not set it later
    if count == 1:
        yield
        return
    put, put_mkl = _setters()
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
def let_openmp_sleep() -> None:
    """Make idle threads of PyTorch sleep after some microseconds in this process, unless the user's settings decide.

    It starts as many OpenMP threads as there are processors, and one more, which sleep until the process ends.
    """
    if os.environ.get("OMP_WAIT_POLICY") or os.environ.get("GOMP_SPINCOUNT"):
        return
    started = threading.Event()
    threading.Thread(target=_start_pool, args=(started,), name="felixlike-openmp", daemon=True).start()
    started.wait()


def _start_pool(started: threading.Event) -> None:
    """Start this thread's OpenMP pool and keep it."""
    import torch

    torch.get_num_threads()  # initializes it, so that PyTorch does not set it later
    count = sum(map(len, usable_processors())) + 1
    put, _ = _setters()
    put(count)
    torch.empty(count * _GRAIN).fill_(0)
    started.set()
    threading.Event().wait()


_GRAIN = 2**15
"""Number of elements per thread from which on PyTorch fills tensors in parallel (at::internal::GRAIN_SIZE)."""


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
