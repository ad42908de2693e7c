"""Summarize a candidate as one row of numbers, for boosted trees and corrections, which have no notion of stores.

Input: features [n, stores, columns]. Output: the sum over stores and the maximum of every column and ratio, in
logarithms: [n, 2 · (columns + ratios)]. Across workloads, counts per operation matter. Trees, unlike network layers,
cannot combine two columns, so `per_operation` computes these counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from felixlike._util.torch_modes import default_modes
from felixlike.costmodel.ratios import H100, RATIOS, GpuLimits, ratios
from felixlike.features import NAMES, FeatureArray

Rows = npt.NDArray[np.float32]

ROW = 2 * (len(NAMES) + RATIOS) + 2 * len(NAMES) + 1
"""Number of columns of `summary_of_logs` and `per_operation` together."""

_OPERATIONS = [i for i, name in enumerate(NAMES) if name.startswith("float_")]
"""Columns that count floating-point operations."""

_MOST = 60.0
"""Maximum logarithm of a count, to which larger ones are clipped. Chosen by hand."""


def summary(features: FeatureArray) -> Rows:
    """Return float32[n, 2 · (columns + ratios)] for features, float64[n, stores, columns]."""
    return summary_of_logs(np.log1p(features).astype(np.float32))


@default_modes()
def summary_of_logs(log_features: npt.NDArray[np.float32], gpu: GpuLimits = H100) -> Rows:
    """Return the same as `summary`, for log(1 + feature), float32[n, stores, columns]."""
    with torch.no_grad():
        result: Rows = _summary(torch.from_numpy(log_features), gpu).numpy()
    return result


@default_modes()
def per_operation(log_features: npt.NDArray[np.float32]) -> Rows:
    """Return float32[n, 2 · columns + 1] for log(1 + feature), float32[n, stores, columns].

    The columns are, in logarithms: the sums over stores per floating-point operation of the whole program, the row of
    the store with the most operations, and the number of operations. On unseen workloads of MetaSchedule's CPU space
    XGBoost has rank correlation 0.57 with `summary_of_logs` and 0.66 with both (`python -m benchmarks.costmodel`)."""
    with torch.no_grad():
        result: Rows = _per_operation(torch.from_numpy(log_features)).numpy()
    return result


def rows(log_features: Tensor) -> Tensor:
    """Return float32[n, ROW]: `summary_of_logs` and `per_operation` concatenated, differentiable."""
    return torch.cat([_summary(log_features), _per_operation(log_features)], dim=-1)


def _summary(logs: Tensor, gpu: GpuLimits = H100) -> Tensor:
    """Return the columns of `summary_of_logs`."""
    present = (logs.detach().abs().amax(dim=-1, keepdim=True) > 0).to(logs.dtype)
    logs = torch.cat([logs, ratios(logs, gpu) * present], dim=-1)
    return torch.cat([logs.clamp(0.0, _MOST).expm1().sum(dim=1).log1p(), logs.amax(dim=1)], dim=-1)


def _per_operation(log_features: Tensor) -> Tensor:
    """Return the columns of `per_operation`."""
    logs = log_features.double()
    counts = logs.clamp(0.0, _MOST).expm1()  # smooth features may be slightly negative
    operations = counts[..., _OPERATIONS].sum(dim=-1)
    total = operations.sum(dim=1, keepdim=True).log1p()
    busiest = logs[torch.arange(len(logs)), operations.argmax(dim=1)]
    return torch.cat([counts.sum(dim=1).log1p() - total, busiest, total], dim=-1).float()
