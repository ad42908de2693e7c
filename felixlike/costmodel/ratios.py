"""What features say together about a GPU: numbers that a network would have to learn products and quotients for.

    waves      = blocks / (multiprocessors · resident blocks); of one in so many the last may leave all idle
    resident   = min( threads of a multiprocessor / threads, shared memory / shared bytes, registers / own registers )
    occupancy  = resident · threads

In: log(1 + feature), float32[…, columns]. Out: float32[…, RATIOS], logarithms again. Smooth almost everywhere, so that
gradients pass. On CPUs all are 0: one block, one thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from felixlike.features import NAMES, SLOTS

MULTIPROCESSORS, THREADS, SHARED, REGISTERS, RESIDENT, WARP = 132.0, 2048.0, 233472.0, 262144.0, 32.0, 32.0
"""Of the H100, whose measurements the CUDA weights come from: multiprocessors, and what each has (threads; bytes of
shared memory and registers; blocks at most). CUDA C++ Programming Guide, table of compute capability 9.0."""

_OVERHEAD = 96.0
"""Bytes of registers a thread needs for addresses and operands beside its own buffers: of 12,583 kernels built
for the H100, a quarter get by with 26 registers in all."""

RATIOS = 6 + SLOTS
"""Columns that `ratios` adds."""


def ratios(log_features: Tensor) -> Tensor:
    """See the module's docstring."""

    def of(name: str) -> Tensor:
        return log_features[..., NAMES.index(name)]

    blocks, threads, virtual = (of(f"{n}_extent").expm1().clamp(min=1.0) for n in ("block", "thread", "vthread"))
    on_gpu = blocks * threads > 1.0
    if not on_gpu.any():  # a search on a CPU passes here at every step
        return log_features.new_zeros(*log_features.shape[:-1], RATIOS)
    own = of("local_bytes").expm1().clamp(min=0.0) * virtual + _OVERHEAD
    resident = torch.minimum(THREADS / threads, SHARED / of("shared_bytes").expm1().clamp(min=1.0))
    resident = torch.minimum(resident, REGISTERS / (own * threads)).clamp(max=RESIDENT)
    waves = blocks / (MULTIPROCESSORS * resident.clamp(min=1.0))
    found = [
        torch.log1p(1.0 / waves),
        torch.log1p(blocks / MULTIPROCESSORS),
        torch.log1p(resident * threads),
        torch.log1p(WARP / threads),
        torch.log1p(of("iterations").expm1() / (blocks * threads)),
        torch.log(own),
    ]
    # Sectors of 32 bytes that the threads of a warp touch at once, of four-byte elements: 4 side by side, 32 far apart.
    found += [torch.log1p((of(f"buffer{slot}_thread_stride").expm1()).clamp(max=8.0)) for slot in range(SLOTS)]
    return torch.stack(found, dim=-1) * on_gpu[..., None].to(log_features.dtype)
