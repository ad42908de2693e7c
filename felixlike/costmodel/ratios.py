"""Compute GPU occupancy ratios from features, since networks do not learn products and quotients easily.

    waves      = blocks / (multiprocessors · resident blocks); the last of few waves may leave multiprocessors idle
    resident   = min( threads of a multiprocessor / threads, shared memory / shared bytes, registers / registers of a
    block ) occupancy  = resident · threads

Input: log(1 + feature), float32[…, columns]. Output: logarithms of ratios, float32[…, RATIOS]. They are smooth almost
everywhere, so gradients pass. On CPUs, with one block and one thread, all are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from felixlike.features import NAMES, SLOTS

MULTIPROCESSORS, THREADS, SHARED, REGISTERS, RESIDENT, WARP = 132.0, 2048.0, 233472.0, 262144.0, 32.0, 32.0
"""Limits of the H100, on which the CUDA weights were measured: number of multiprocessors; threads, bytes of shared
memory, bytes of registers and maximum blocks of each; threads per warp. From the CUDA C++ Programming Guide, table of
compute capability 9.0."""

_OVERHEAD = 96.0
"""Bytes of registers that a thread needs for addresses and operands, besides its local buffers. Of 12,583 kernels built
for the H100, a quarter use at most 26 registers in total."""

RATIOS = 6 + SLOTS
"""Number of columns of `ratios`."""


def ratios(log_features: Tensor) -> Tensor:
    """Return the ratios of each store, float32[…, RATIOS], for log(1 + feature), float32[…, columns]."""

    def of(name: str) -> Tensor:
        return log_features[..., NAMES.index(name)]

    blocks, threads, virtual = (of(f"{n}_extent").expm1().clamp(min=1.0) for n in ("block", "thread", "vthread"))
    on_gpu = blocks * threads > 1.0
    if not on_gpu.any():  # shortcut for CPUs, used in every step of a descent
        return log_features.new_zeros(*log_features.shape[:-1], RATIOS)
    register_bytes = of("local_bytes").expm1().clamp(min=0.0) * virtual + _OVERHEAD
    resident = torch.minimum(THREADS / threads, SHARED / of("shared_bytes").expm1().clamp(min=1.0))
    resident = torch.minimum(resident, REGISTERS / (register_bytes * threads)).clamp(max=RESIDENT)
    waves = blocks / (MULTIPROCESSORS * resident.clamp(min=1.0))
    columns = [
        torch.log1p(1.0 / waves),
        torch.log1p(blocks / MULTIPROCESSORS),
        torch.log1p(resident * threads),
        torch.log1p(WARP / threads),
        torch.log1p(of("iterations").expm1() / (blocks * threads)),
        torch.log(register_bytes),
    ]
    # 32-byte sectors that a warp accesses at once, for 4-byte elements: 4 if contiguous, 32 if far apart.
    columns += [torch.log1p((of(f"buffer{slot}_thread_stride").expm1()).clamp(max=8.0)) for slot in range(SLOTS)]
    return torch.stack(columns, dim=-1) * on_gpu[..., None].to(log_features.dtype)
