"""Our own torch work on one thread.

The networks and formulas are small: a second OpenMP thread makes them slower, and its spinning disturbs what is being
measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread inside, and on as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
