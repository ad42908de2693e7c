"""Tests that copies and FFTs on the calling thread do not start PyTorch's threads, and that idle ones sleep."""

from __future__ import annotations

import os
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


SLEEPING = """
import os, sys, threading
import torch
from felixlike.runtime.serial_copy import let_openmp_sleep

torch.set_num_threads(2)
for _ in range(2):
    let_openmp_sleep()
helpers = [thread for thread in threading.enumerate() if thread.name == "felixlike-openmp"]
assert len(helpers) == (sys.argv[1] == "")
assert torch.get_num_threads() == 2
if os.fork() == 0:
    let_openmp_sleep()
    os._exit(0)
assert os.wait()[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
@pytest.mark.parametrize("policy", ["", "active"])
def test_idle_threads_of_pytorch_sleep_unless_the_user_decides(policy: str) -> None:
    """`policy` is OpenMP's own setting. A forked process has the setting, and starts no threads."""
    settings = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    settings |= {"OMP_WAIT_POLICY": policy} if policy else {}
    subprocess.run([sys.executable, "-c", SLEEPING, policy], check=True, timeout=120, env=settings)
