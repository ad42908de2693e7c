"""Compute GPU occupancy ratios from features, since networks do not learn products and quotients easily.

    waves      = blocks / (multiprocessors · resident blocks); the last of few waves may leave multiprocessors idle
    resident   = min( threads of a multiprocessor / threads, shared memory / shared bytes, registers / registers of a
    block ) occupancy  = resident · threads

Input: log(1 + feature), float32[…, columns], and a GPU's limits. Output: logarithms of ratios, float32[…, RATIOS].
They are smooth almost everywhere, so gradients pass. On CPUs, with one block and one thread, all are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from felixlike.features import NAMES, SLOTS
from felixlike.hardware import Device
from felixlike.hardware.occupancy import WARP, Multiprocessor, multiprocessor


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """What the blocks of a kernel share.

    Attributes:
        count: Number of multiprocessors.
        multiprocessor: Limits of each.
    """

    count: int
    multiprocessor: Multiprocessor


H100 = GpuLimits(132, multiprocessor("sm_90"))
"""The GPU on which the CUDA weights were measured."""


def limits_of(device: Device | None) -> GpuLimits:
    """Return the limits of a device; of the H100 for CPUs, whose ratios are 0, and for None."""
    if device is None or device.kind == "cpu":
        return H100
    return GpuLimits(device.cores, multiprocessor(device.mcpu))


_OVERHEAD = 96.0
"""Bytes of registers that a thread needs for addresses and operands, besides its local buffers. Of 12,583 kernels built
for the H100, a quarter use at most 26 registers in total."""

RATIOS = 6 + SLOTS
"""Number of columns of `ratios`."""


def ratios(log_features: Tensor, gpu: GpuLimits = H100) -> Tensor:
    """Return the ratios of each store, float32[…, RATIOS], for log(1 + feature), float32[…, columns]."""

    def of(name: str) -> Tensor:
        return log_features[..., NAMES.index(name)]

    blocks, threads, virtual = (of(f"{n}_extent").expm1().clamp(min=1.0) for n in ("block", "thread", "vthread"))
    on_gpu = blocks * threads > 1.0
    if not on_gpu.any():  # shortcut for CPUs, used in every step of a descent
        return log_features.new_zeros(*log_features.shape[:-1], RATIOS)
    register_bytes = of("local_bytes").expm1().clamp(min=0.0) * virtual + _OVERHEAD
    limits, count = gpu.multiprocessor, float(gpu.count)
    resident = torch.minimum(
        float(WARP * limits.warps) / threads, float(limits.shared_bytes) / of("shared_bytes").expm1().clamp(min=1.0)
    )
    resident = torch.minimum(resident, 4.0 * limits.registers / (register_bytes * threads)).clamp(max=limits.blocks)
    waves = blocks / (count * resident.clamp(min=1.0))
    columns = [
        torch.log1p(1.0 / waves),
        torch.log1p(blocks / count),
        torch.log1p(resident * threads),
        torch.log1p(WARP / threads),
        torch.log1p(of("iterations").expm1() / (blocks * threads)),
        torch.log(register_bytes),
    ]
    # 32-byte sectors that a warp accesses at once, for 4-byte elements: 4 if contiguous, 32 if far apart.
    columns += [torch.log1p((of(f"buffer{slot}_thread_stride").expm1()).clamp(max=8.0)) for slot in range(SLOTS)]
    return torch.stack(columns, dim=-1) * on_gpu[..., None].to(log_features.dtype)
