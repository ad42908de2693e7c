"""Ratios of occupancy follow the limits of the GPU that kernels are for."""

from __future__ import annotations

import math

import pytest
import torch

from felixlike import costmodel
from felixlike.costmodel.ratios import H100, RATIOS, limits_of, ratios
from felixlike.features import NAMES
from felixlike.hardware import described, resolve_target, target_device
from felixlike.hardware.occupancy import multiprocessor


def _store(**features: float) -> torch.Tensor:
    row = torch.zeros(1, 1, len(NAMES), dtype=torch.float64)
    for name, value in features.items():
        row[..., NAMES.index(name)] = math.log1p(value)
    return row


@pytest.mark.parametrize("name", ["h100", "a10g", "rtx-a5000", "xavier-nx"])
def test_blocks_run_in_waves_over_the_multiprocessors(name: str) -> None:
    device, limits = described(name), multiprocessor(described(name).mcpu)
    blocks, threads, shared = 960.0, 256.0, 24576.0
    row = _store(block_extent=blocks, thread_extent=threads, vthread_extent=1, shared_bytes=shared, iterations=1e6)
    resident = min(32 * limits.warps / threads, limits.shared_bytes / shared, 4 * limits.registers / (96 * threads))
    resident = min(resident, limits.blocks)
    waves, whole, warps, *_ = ratios(row, limits_of(device))[0, 0].tolist()
    assert waves == pytest.approx(math.log1p(device.cores * resident / blocks))
    assert whole == pytest.approx(math.log1p(blocks / device.cores))
    assert warps == pytest.approx(math.log1p(resident * threads))


def test_cpus_have_none() -> None:
    row = _store(iterations=1e6, block_extent=1, thread_extent=1)
    assert ratios(row, limits_of(described("zen5"))).tolist() == [[[0.0] * RATIOS]]


def test_scores_depend_on_the_gpu() -> None:
    """The weights were measured on an H100, which stays the default."""
    row = _store(block_extent=200, thread_extent=128, vthread_extent=1, iterations=1e6, float_mul=1e6).float()
    scores = {
        name: costmodel.load("cuda", device=device).network.exact(row, trees=False)
        for name, device in (("default", None), ("h100", described("h100")), ("xavier-nx", described("xavier-nx")))
    }
    assert limits_of(target_device(resolve_target("sm_90"))) == H100
    assert torch.equal(scores["default"], scores["h100"])
    assert not torch.equal(scores["h100"], scores["xavier-nx"])
