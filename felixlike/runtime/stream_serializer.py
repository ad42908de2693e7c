"""Calls of a compiled model on a GPU, each on the stream that PyTorch's caller has chosen, one after the other.

A call only starts kernels, and returns before they have run. They are started on the current stream of its inputs
(tvm_ffi asks torch for it), so what the caller does on that stream before and after is in order. But intermediate
results of all calls lie in the same memory: a call on another stream waits, on the GPU, for the one before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class Streams:
    """Called before each call of one virtual machine, by one thread at a time.

    device: of the model.  In order to be copied with a model, it holds no stream until the first call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._latest: Any = None

    def __call__(self) -> None:
        """Have the current stream wait for what the latest call started on another one."""
        current = _current(self._device)
        if current != self._latest:
            if self._latest is not None:
                current.wait_stream(self._latest)
            self._latest = current


class StreamSerializer:
    """A virtual machine's entry that one thread at a time calls, in the order of the streams: whatever is called, its
    intermediate results lie in the same memory."""

    def __init__(self, main: Callable[..., Any], device: torch.device) -> None:
        self._main, self._order, self._lock = main, Streams(device), threading.Lock()

    def __call__(self, *tensors: Any) -> Any:
        """The entry's result; its kernels have been started."""
        with self._lock:
            self._order()
            return self._main(*tensors)


def _current(device: torch.device) -> Any:
    return torch.cuda.current_stream(device)
