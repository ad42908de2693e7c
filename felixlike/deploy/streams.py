"""Calls of a compiled model on a GPU, each on the stream that PyTorch's caller has chosen, one after the other.

A call only starts kernels, and returns before they have run. They are started on the current stream of its inputs
(tvm_ffi asks torch for it), so what the caller does on that stream before and after is in order. But intermediate
results of all calls of a thread lie in the same memory: a call on another stream waits, on the GPU, for the one before.
"""

from __future__ import annotations

import threading
from typing import Any

import torch


class Streams:
    """Called before each call of a model, whose threads have a virtual machine each.

    device: of the model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._here = threading.local()

    def __call__(self, _: int = 0) -> None:
        """Have the current stream wait for what this thread's latest call started on another one."""
        current, latest = _current(self._device), getattr(self._here, "latest", None)
        if current != latest:
            if latest is not None:
                current.wait_stream(latest)
            self._here.latest = current


def _current(device: torch.device) -> Any:
    return torch.cuda.current_stream(device)
