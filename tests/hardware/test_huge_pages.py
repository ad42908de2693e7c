"""Memory in huge pages: its flag in Linux's table of mappings, and tensors of any shape and dtype."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import felixlike as fx
from felixlike.hardware import huge_pages

_MEGABYTE = 1 << 20


def _asks_for_huge_pages(address: int) -> bool:
    """Return the flag of a mapping in this process."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            start, end = (int(part, 16) for part in words[0].split("-"))
            inside = start <= address < end
        elif inside and words[0] == "VmFlags:":
            return "hg" in words
    raise AssertionError(f"no mapping has {address:#x}")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
@pytest.mark.parametrize(("size", "asks"), [(5 * _MEGABYTE, True), (_MEGABYTE, False)])
def test_memory_that_fills_a_page_asks_for_huge_ones(size: int, asks: bool) -> None:
    memory = huge_pages.memory(size)
    assert len(memory) == size
    assert not any(memory[:: _MEGABYTE // 2])
    assert _asks_for_huge_pages(ctypes.addressof(ctypes.c_char.from_buffer(memory))) is asks


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the flag")
def test_kernels_without_huge_pages_give_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)  # refused
    assert len(huge_pages.memory(3 * _MEGABYTE)) == 3 * _MEGABYTE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(3,), (2, 1025, 1024), ()])
def test_tensors_have_any_shape_and_dtype(shape: tuple[int, ...], dtype: str) -> None:
    tensor = huge_pages.empty(shape, dtype)
    assert (tuple(tensor.shape), str(tensor.dtype)) == (shape, dtype)
    view = torch.utils.dlpack.from_dlpack(tensor)
    view.fill_(3)
    assert torch.utils.dlpack.from_dlpack(tensor).reshape(-1)[-1] == 3


def test_packed_weights_are_in_huge_pages() -> None:
    model = torch.nn.Linear(1024, 1024).eval()
    fast = fx.optimize(model, (torch.randn(64, 1024),), trials=0, progress=False)
    x = torch.randn(64, 1024)
    np.testing.assert_allclose(fast(x).numpy(), model(x).detach().numpy(), rtol=1e-4, atol=1e-4)
    (weights,) = [constant for constant in fast._compiled.constants if constant.nbytes > _MEGABYTE]
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert _asks_for_huge_pages(weights.data_ptr())
