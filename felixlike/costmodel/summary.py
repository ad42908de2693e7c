"""A candidate as one row of numbers, for models that know no stores: trees, and what corrects a task's scores.

In: features [n, stores, columns]. Out: of every column, and of the ratios that the network sees too, the sum over all
stores and the largest, in logarithms: [n, 2 · (columns + ratios)]. Across workloads it is counts per operation that
matter, which trees, unlike layers, cannot make of two columns: `per_operation` adds them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from felixlike._util.torch_modes import default_modes
from felixlike.costmodel.ratios import RATIOS, ratios
from felixlike.features import NAMES, FeatureArray

Rows = npt.NDArray[np.float32]

ROW = 2 * (len(NAMES) + RATIOS) + 2 * len(NAMES) + 1
"""Columns of both together."""

_OPERATIONS = [i for i, name in enumerate(NAMES) if name.startswith("float_")]
_MOST = 60.0
"""Logarithms beyond this are no counts."""


def summary(features: FeatureArray) -> Rows:
    """float32[n, 2 · (columns + ratios)] for float64[n, stores, columns]."""
    return summary_of_logs(np.log1p(features).astype(np.float32))


@default_modes()
def summary_of_logs(log_features: npt.NDArray[np.float32]) -> Rows:
    """The same for log(1 + feature)."""
    with torch.no_grad():
        found: Rows = _summary(torch.from_numpy(log_features)).numpy()
    return found


@default_modes()
def per_operation(log_features: npt.NDArray[np.float32]) -> Rows:
    """float32[n, 2 · columns + 1] of log(1 + feature) [n, stores, columns]: the sums over stores per floating-point
    operation of the whole program, the row of the store with most operations, and the operations, in logarithms.

    On unseen workloads of MetaSchedule's CPU space xgboost orders candidates with rank correlation 0.57 by
    `summary_of_logs` and 0.66 by both (`python -m benchmarks.costmodel`)."""
    with torch.no_grad():
        found: Rows = _per_operation(torch.from_numpy(log_features)).numpy()
    return found


def rows(log_features: Tensor) -> Tensor:
    """float32[n, ROW]: `summary_of_logs` and `per_operation` side by side, differentiable."""
    return torch.cat([_summary(log_features), _per_operation(log_features)], dim=-1)


def _summary(logs: Tensor) -> Tensor:
    present = (logs.detach().abs().amax(dim=-1, keepdim=True) > 0).to(logs.dtype)
    logs = torch.cat([logs, ratios(logs) * present], dim=-1)
    return torch.cat([logs.clamp(0.0, _MOST).expm1().sum(dim=1).log1p(), logs.amax(dim=1)], dim=-1)


def _per_operation(log_features: Tensor) -> Tensor:
    logs = log_features.double()
    counts = logs.clamp(0.0, _MOST).expm1()  # smooth features may lie a little below 0
    operations = counts[..., _OPERATIONS].sum(dim=-1)
    total = operations.sum(dim=1, keepdim=True).log1p()
    busiest = logs[torch.arange(len(logs)), operations.argmax(dim=1)]
    return torch.cat([counts.sum(dim=1).log1p() - total, busiest, total], dim=-1).float()
