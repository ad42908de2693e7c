"""What features say together about a GPU: numbers that a network would have to learn products and quotients for.

    waves      = blocks / (multiprocessors · resident blocks), and what the last wave leaves idle of it
    resident   = min( threads of a multiprocessor / threads, shared memory / shared bytes, registers / own registers )
    occupancy  = resident · threads

In: log(1 + feature), float32[…, columns]. Out: float32[…, RATIOS], logarithms again. Smooth almost everywhere, so that
gradients pass; the rest of a wave enters as if the last one were empty (an upper bound). On CPUs the columns say
nothing: one block, one thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from felixlike.features import NAMES, SLOTS

MULTIPROCESSORS, THREADS, SHARED, REGISTERS, RESIDENT, WARP = 132.0, 2048.0, 233472.0, 262144.0, 32.0, 32.0
"""Of the H100, whose measurements the CUDA weights come from: multiprocessors, and what each has (threads; bytes of
shared memory and registers; blocks at most). CUDA C++ Programming Guide, table of compute capability 9.0."""

_OVERHEAD = 96.0
"""Bytes of registers a thread needs for addresses and operands beside its own buffers, about what `ptxas` reports for
kernels without any."""

RATIOS = 6 + SLOTS
"""Columns that `ratios` adds."""


def ratios(log_features: Tensor) -> Tensor:
    """See the module's docstring."""

    def of(name: str) -> Tensor:
        return log_features[..., NAMES.index(name)]

    blocks, threads, virtual = (of(f"{n}_extent").expm1().clamp(min=1.0) for n in ("block", "thread", "vthread"))
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
    on_gpu = (blocks * threads > 1.0).to(log_features.dtype)
    return torch.stack(found, dim=-1) * on_gpu[..., None]
