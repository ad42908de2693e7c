"""Our own torch work on one thread.

The networks and formulas are small: a second OpenMP thread makes them slower, and its spinning disturbs what is being
measured.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from felixlike._util.torch_modes import SharedSetting


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread inside, and on as many as before afterwards."""
    with _threads().held():
        yield


@functools.cache
def _threads() -> SharedSetting[int]:
    import torch

    return SharedSetting(torch.get_num_threads, torch.set_num_threads, 1)
