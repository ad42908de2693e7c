"""Define the cost model's network: an ensemble of MLPs on the features of stores, added to the bottleneck model.

Input: log(1 + feature), float32[n, stores, columns]. Output: log(1 / latency) up to a constant of the task,
float32[members, n]. The architecture is TenSet's and Felix's: a dense encoder per store, a sum over stores, residual
blocks. The members' spread estimates the uncertainty. SiLU replaces ReLU to keep the search's objective smooth.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from felixlike._util.torch_modes import default_modes
from felixlike.costmodel.boosted_trees import Trees
from felixlike.costmodel.bottleneck import Bottlenecks
from felixlike.costmodel.ratios import H100, RATIOS, GpuLimits, ratios
from felixlike.costmodel.summary import per_operation, summary_of_logs
from felixlike.features import NAMES

MEMBERS = 3
"""Default number of networks in the ensemble."""

WIDTH = 192
"""Default number of hidden units of each network."""

_SMALL = 0.1
"""Initial scale of the head's weights, so that the bottleneck model dominates at first. Chosen by hand."""


class EnsembleLinear(nn.Module):
    """One linear layer per member: float32[members, …, n_in] → float32[members, …, n_out]."""

    def __init__(self, members: int, n_in: int, n_out: int, generator: torch.Generator) -> None:
        super().__init__()
        scale = n_in**-0.5
        self.weight = nn.Parameter((torch.rand(members, n_in, n_out, generator=generator) * 2 - 1) * scale)
        self.bias = nn.Parameter((torch.rand(members, 1, n_out, generator=generator) * 2 - 1) * scale)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Network(nn.Module):
    """The ensemble of networks.

    Args:
        seed: Seed of the initial weights.
        members: Number of networks.
        width: Hidden units of each network.

    Attributes:
        mean: float32[columns], subtracted from the inputs; stored with the weights.
        scale: float32[columns], multiplied with the centred inputs; stored with the weights.
        trees: Boosted trees trained on the same samples; None without. They contribute half of the score of exact
            points, where no gradient is needed.
        gpu: Limits of the GPU whose kernels are scored; not stored with the weights.
    """

    mean: Tensor
    scale: Tensor
    trees: Trees | None
    gpu: GpuLimits

    @default_modes()
    def __init__(self, *, seed: int = 0, members: int = MEMBERS, width: int = WIDTH) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        columns = len(NAMES) + RATIOS
        self.members, self.width = members, width
        self.trees, self.gpu = None, H100
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("scale", torch.full((columns,), 0.1))
        self.encode = EnsembleLinear(members, columns, width, generator)
        self.encode_2 = EnsembleLinear(members, width, width, generator)
        self.blocks = nn.ModuleList(EnsembleLinear(members, width, width, generator) for _ in range(2))
        self.head = EnsembleLinear(members, width, 1, generator)
        self.bottlenecks = Bottlenecks()
        with torch.no_grad():
            self.head.weight.mul_(_SMALL)

    def forward(self, log_features: Tensor) -> Tensor:
        """Return float32[members, n]. Stores whose row is all zero (inlined ones) are ignored."""
        count = len(log_features)
        present = log_features.detach().abs().amax(dim=-1) > 0
        of, _ = present.nonzero(as_tuple=True)  # most rows are padding if few sketches have many stores
        rows = log_features[present]
        inputs = (torch.cat([rows, ratios(rows, self.gpu)], dim=-1) - self.mean) * self.scale
        encoded = nn.functional.silu(self.encode(inputs.expand(self.members, -1, -1)))
        encoded = nn.functional.silu(self.encode_2(encoded))
        hidden = encoded.new_zeros(self.members, count, self.width).index_add(1, of, encoded)
        for block in self.blocks:
            hidden = hidden + nn.functional.silu(block(hidden))
        output: Tensor = self.head(hidden)[..., 0] - self.bottlenecks(log_features, present.to(log_features.dtype))
        return output

    @default_modes()
    def exact(self, log_features: Tensor, *, trees: bool = True) -> Tensor:
        """Return float32[members, n] without gradients: the mean of each member's score and that of the trees, if any.

        With `trees` false, return each member's score.

        On unseen workloads the mean ranks candidates better than either (`python -m benchmarks.costmodel`)."""
        with torch.no_grad():
            scores: Tensor = self(log_features)
            if trees and self.trees is not None and len(log_features):
                logs = log_features.numpy()
                rows = np.concatenate([summary_of_logs(logs, self.gpu), per_operation(logs)], axis=1)
                scores = 0.5 * (scores + torch.from_numpy(self.trees.predict(rows)).to(scores.dtype))
        return scores

    def standardise(self, log_features: Tensor) -> None:
        """Set `mean` and `scale` from float32[n, stores, columns]; standard deviations below 0.5 count as 0.5."""
        rows = log_features.reshape(-1, log_features.shape[-1])
        rows = rows[rows.abs().amax(dim=1) > 0]
        rows = torch.cat([rows, ratios(rows, self.gpu)], dim=-1)
        if len(rows) < 2:
            return
        self.mean.copy_(rows.mean(dim=0))
        self.scale.copy_(1.0 / rows.std(dim=0).clamp(min=0.5))
