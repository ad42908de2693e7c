"""A candidate as one row of numbers, for models that know no stores: trees.

In: features [n, stores, columns]. Out: of every column, and of the ratios that the network sees too, the sum over all
stores and the largest, in logarithms: [n, 2 · (columns + ratios)].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from felixlike.costmodel.ratios import ratios
from felixlike.features import FeatureArray
from felixlike.modes import own_modes

Rows = npt.NDArray[np.float32]


def summary(features: FeatureArray) -> Rows:
    """float32[n, 2 · (columns + ratios)] for float64[n, stores, columns]."""
    return summary_of_logs(np.log1p(features).astype(np.float32))


@own_modes()
def summary_of_logs(log_features: npt.NDArray[np.float32]) -> Rows:
    """The same for log(1 + feature)."""
    with torch.no_grad():
        logs = torch.from_numpy(log_features)
        present = (logs.abs().amax(dim=-1, keepdim=True) > 0).to(logs.dtype)
        logs = torch.cat([logs, ratios(logs) * present], dim=-1)
        found: Rows = torch.cat([logs.expm1().sum(dim=1).log1p(), logs.amax(dim=1)], dim=-1).numpy()
    return found
