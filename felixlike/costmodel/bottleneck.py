"""What a kernel would take by its bottlenecks alone: a handful of learned costs, the same for all workloads.

    seconds ∝ Σ stores  ( (a·operations)^p + (b·moves)^p )^(1/p) + c·lines from L2 + d·lines from memory

operations: executions of the store, vectors counted once. Arithmetic and moves between registers and L1 go on at the
same time on units of their own, which p says how well; lines that are missed are waited for. The roofline (Williams et
al. 2009) and its refinement by cache levels (Hofmann et al. 2016, ECM), with the machine's numbers learned.

In: features. Out: log seconds up to a constant. A network on top learns what this leaves out, and where there is little
to learn from, this still knows what is slow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from felixlike.features import NAMES
from felixlike.features.access import CACHE_LINE

_START = (1.5, 0.3, 0.7, 4.0)
"""Cycles of a vector operation, a move, a line from L2 and one from behind it, before anything is learned: about what
measurements give, see docs/results/costmodel.md."""


class Bottlenecks(nn.Module):
    """log seconds, float32[n], for log(1 + feature), float32[n, stores, columns], and which stores there are (1 or 0),
    float32[n, stores]."""

    def __init__(self) -> None:
        super().__init__()
        self.costs = nn.Parameter(torch.tensor(_START).log())
        self.overlap = nn.Parameter(torch.tensor(0.0))
        """log(p − 1)."""

    def forward(self, log_features: Tensor, present: Tensor) -> Tensor:
        iterations, vectors, moves, l1, l2 = (log_features[..., column] for column in _COLUMNS)
        costs = self.costs.exp()
        sharpness = 1.0 + self.overlap.clamp(-4.0, 3.0).exp()
        # Logarithms of 1 + x serve as those of x: counts are large where they matter, and 0 stays harmless.
        work = torch.stack([iterations - vectors + self.costs[0], moves + self.costs[1]])
        busy = (torch.logsumexp(work * sharpness, dim=0) / sharpness).exp()
        waiting = costs[2] * l1.expm1() / CACHE_LINE + costs[3] * l2.expm1() / CACHE_LINE
        total: Tensor = ((busy + waiting) * present).sum(dim=-1)
        return total.clamp(min=1e-6).log()


_COLUMNS = [NAMES.index(n) for n in ("iterations", "vector_extent", "moves", "traffic_l1", "traffic_l2")]
