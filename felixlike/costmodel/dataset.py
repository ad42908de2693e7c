"""Measured samples: features with what was measured, grouped by task, since only times of one task compare.

In: features and seconds. Out: `Dataset`, from which training draws batches. Candidates that failed are samples too:
they count as slow as the slowest that is still told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from felixlike.features import FeatureArray

SLOWEST = 4.0
"""Samples more than e⁴ ≈ 55 times slower than their task's best are not told apart: the search wants the other end."""


@dataclass(slots=True)
class TaskSamples:
    """The samples of one task.  log_features: float32[stores, columns] each; the number of stores differs by sketch.
    seconds: per call, inf for failures.  anchors, anchor_scores: unmeasured points and what the pretrained model said
    of them."""

    log_features: list[Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    anchors: list[Tensor] = field(default_factory=list)
    anchor_scores: list[Tensor] = field(default_factory=list)

    def labels(self) -> Tensor:
        """float32[n]: log(best / seconds), at least −SLOWEST."""
        best = min((s for s in self.seconds if math.isfinite(s)), default=1.0)
        return torch.tensor([max(math.log(best / s), -SLOWEST) if math.isfinite(s) else -SLOWEST for s in self.seconds])


class Dataset:
    """All samples so far, by task key."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskSamples] = {}

    def __len__(self) -> int:
        return sum(len(samples.seconds) for samples in self._tasks.values())

    def add(self, task: str, features: FeatureArray, seconds: Sequence[float]) -> None:
        """Add float64[n, stores, columns] (features themselves, no logarithms) with their measured seconds."""
        samples = self._tasks.setdefault(task, TaskSamples())
        logs = torch.from_numpy(np.log1p(features)).to(torch.float32)
        samples.log_features += list(logs)
        samples.seconds += [float(s) for s in seconds]

    def add_anchors(self, task: str, features: FeatureArray, scores: Tensor) -> None:
        """Add unmeasured points of a task, float64[n, stores, columns], with what the model thought of them before any
        measurement, float32[members, n]."""
        samples = self._tasks.setdefault(task, TaskSamples())
        samples.anchors += list(torch.from_numpy(np.log1p(features)).to(torch.float32))
        samples.anchor_scores += list(scores.T)

    def anchors(self, task: str, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(float32[n, stores, columns], float32[members, n]) of some anchors of a task."""
        samples = self._tasks[task]
        scores = torch.stack([samples.anchor_scores[r] for r in rows], dim=1)
        return stack([samples.anchors[r] for r in rows]), scores

    def tasks(self) -> tuple[str, ...]:
        """Keys of the tasks that have samples."""
        return tuple(self._tasks)

    def samples(self, task: str) -> TaskSamples:
        """One task's samples."""
        return self._tasks[task]

    def batch(self, task: str, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(float32[n, stores, columns], float32[n] labels) of some samples of one task; missing stores are zeros."""
        samples = self._tasks[task]
        return stack([samples.log_features[r] for r in rows]), samples.labels()[list(rows)]


def stack(log_features: Sequence[Tensor]) -> Tensor:
    """float32[n, most stores, columns] of features with different numbers of stores."""
    most = max(len(x) for x in log_features)
    return torch.stack([torch.nn.functional.pad(x, (0, 0, 0, most - len(x))) for x in log_features])
