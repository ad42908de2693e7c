"""Serialize the calls of a compiled model on a GPU across PyTorch's streams.

A call launches kernels on torch's current stream, which tvm_ffi gets from torch, and returns before they have run. It
is therefore ordered with the caller's other work on that stream. All calls share the memory for intermediate results,
so a call on another stream waits, on the GPU, for the previous call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class Streams:
    """Orders the streams of one virtual machine's calls. One thread at a time may call it, before each call.

    Args:
        device: The model's device. No stream is held before the first call, so that models can be copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._latest: Any = None

    def __call__(self) -> None:
        """Make the current stream wait for the kernels that the latest call launched on another stream."""
        current: Any = torch.cuda.current_stream(self._device)
        if current != self._latest:
            if self._latest is not None:
                current.wait_stream(self._latest)
            self._latest = current


class StreamSerializer:
    """A virtual machine's entry that runs one call at a time and orders the streams, as calls share memory."""

    def __init__(self, main: Callable[..., Any], device: torch.device) -> None:
        self._main, self._order, self._lock = main, Streams(device), threading.Lock()

    def __call__(self, *tensors: Any) -> Any:
        """Launch the kernels and return the entry's result."""
        with self._lock:
            self._order()
            return self._main(*tensors)
