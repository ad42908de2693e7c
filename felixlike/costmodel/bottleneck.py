"""Estimate a kernel's time from its bottlenecks, with a few learned costs shared by all workloads.

    seconds ∝ Σ stores  ( (a·operations)^p + (b·moves)^p )^(1/p) + c·lines from L2 + d·lines from memory

operations: executions of the store, with a vector operation counted once. Arithmetic and moves between registers and L1
run concurrently on separate units, and p describes how well they overlap. Cache misses add to the time. The model is
the roofline (Williams et al. 2009) with its refinement by cache levels (Hofmann et al. 2016, ECM). The machine's
parameters are learned.

Input: features. Output: log seconds up to a constant. The network adds a learned correction. With little training data
the bottleneck model still identifies slow schedules.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from felixlike.features import NAMES
from felixlike.features.access import CACHE_LINE

_START = (1.5, 0.3, 0.7, 4.0)
"""Initial cycles of a vector operation, a move, a line from L2, and a line from beyond L2. Approximate measured values,
see docs/results/costmodel.md."""


class Bottlenecks(nn.Module):
    """The bottleneck model.

    Inputs: log(1 + feature), float32[n, stores, columns], and a mask of present stores (1 or 0), float32[n, stores].
    Output: log seconds, float32[n]."""

    def __init__(self) -> None:
        super().__init__()
        self.costs = nn.Parameter(torch.tensor(_START).log())
        self.overlap = nn.Parameter(torch.tensor(0.0))
        """log(p − 1)."""

    def forward(self, log_features: Tensor, present: Tensor) -> Tensor:
        iterations, vectors, moves, l1, l2 = (log_features[..., column] for column in _COLUMNS)
        costs = self.costs.exp()
        sharpness = 1.0 + self.overlap.clamp(-4.0, 3.0).exp()
        # log(1 + x) replaces log(x): relevant counts are large, and 0 stays finite.
        work = torch.stack([iterations - vectors + self.costs[0], moves + self.costs[1]])
        busy = (torch.logsumexp(work * sharpness, dim=0) / sharpness).exp()
        waiting = costs[2] * l1.expm1() / CACHE_LINE + costs[3] * l2.expm1() / CACHE_LINE
        total: Tensor = ((busy + waiting) * present).sum(dim=-1)
        return total.clamp(min=1e-6).log()


_COLUMNS = [NAMES.index(n) for n in ("iterations", "vector_extent", "moves", "traffic_l1", "traffic_l2")]
"""Columns of the features that the model uses."""
