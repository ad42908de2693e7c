"""Tests that copies and FFTs on the calling thread do not start PyTorch's threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import torch
import felixlike as fx
from felixlike.runtime.serial_copy import on_this_thread

def system_threads():
    import os
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(4)
x = torch.randn(4, 200_000)
spread = torch.stack([x, x], -1)[..., 0] if sys.argv[1] == "before" else torch.empty(4, 200_000, 2)[..., 0]
square = torch.empty(64, 64, 64)
before = system_threads()
with on_this_thread():
    assert torch.get_num_threads() == 1
    spread.clone(memory_format=torch.contiguous_format)
    torch.fft.rfft2(square)
    assert system_threads() == before, "threads were started"
    other = []
    asking = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
    asking.start()
    asking.join()
assert torch.get_num_threads() == 4 and other == [4], other
spread.clone(memory_format=torch.contiguous_format)
assert (system_threads() > before) == (sys.argv[1] != "before"), "they are started without the block"
"""


@pytest.mark.parametrize("pool", ["before", "afterwards"])
def test_a_serial_copy_starts_no_threads(pool: str) -> None:
    """`pool` says when PyTorch's thread pool is started: before the serial copy or after it."""
    subprocess.run([sys.executable, "-c", PROGRAM, pool], check=True, timeout=120)
