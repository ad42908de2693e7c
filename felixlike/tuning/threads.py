"""Restrict felixlike's own torch computations to one thread.

The networks and formulas are small. A second OpenMP thread slows them down, and its spinning disturbs measurements.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from felixlike._util.torch_modes import SharedSetting


@contextmanager
def one_thread() -> Iterator[None]:
    """Set torch to one thread inside the block and restore the number afterwards."""
    with _threads().held():
        yield


@functools.cache
def _threads() -> SharedSetting[int]:
    """Return the shared setting of torch's number of threads."""
    import torch

    return SharedSetting(torch.get_num_threads, torch.set_num_threads, 1)
