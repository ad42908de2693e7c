"""Store training samples: features and measured seconds, grouped by task, since only times of one task compare.

Inputs: features and seconds. Output: `Dataset`, from which training draws batches of several tasks. Failed candidates
are samples with the label −SLOWEST.
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
"""Labels are at least −SLOWEST: samples more than e⁴ ≈ 55 times slower than their task's best are not distinguished,
since the search needs the fast ones."""


@dataclass(slots=True)
class TaskSamples:
    """The samples of one task.

    Attributes:
        log_features: float32[stores, columns] each; the number of stores depends on the sketch.
        seconds: Seconds per call; inf for failures.
        anchors: Unmeasured points, float32[stores, columns] each.
        anchor_scores: Their scores by the pretrained model, float32[members] each.
    """

    log_features: list[Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    anchors: list[Tensor] = field(default_factory=list)
    anchor_scores: list[Tensor] = field(default_factory=list)
    _labels: Tensor | None = None

    def labels(self) -> Tensor:
        """Return float32[n]: log(best / seconds), at least −SLOWEST."""
        if self._labels is None or len(self._labels) != len(self.seconds):
            self._labels = torch.tensor(labels(self.seconds), dtype=torch.float32)
        return self._labels

    def fastest(self, most: int) -> list[int]:
        """Return the indices of at most `most` of the fastest samples, in ascending order."""
        order = sorted(range(len(self.seconds)), key=lambda i: self.seconds[i])
        return sorted(order[:most])


def labels(seconds: Sequence[float]) -> list[float]:
    """Return log(best / seconds) of a task's candidates, at least −SLOWEST; 0 for the best, −SLOWEST for failures."""
    best = min((s for s in seconds if math.isfinite(s)), default=1.0)
    return [max(math.log(best / s), -SLOWEST) if math.isfinite(s) else -SLOWEST for s in seconds]


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of several tasks, padded with zeros to the same number per task, `most`.

    Attributes:
        log_features: float32[tasks · most, stores, columns].
        labels: float32[tasks, most].
        present: float32[tasks, most], 1 for samples and 0 for padding.
    """

    log_features: Tensor
    labels: Tensor
    present: Tensor


class Dataset:
    """All samples, by task key."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskSamples] = {}

    def __len__(self) -> int:
        return sum(len(samples.seconds) for samples in self._tasks.values())

    def add(self, task: str, features: FeatureArray, seconds: Sequence[float]) -> None:
        """Add features, float64[n, stores, columns] without logarithms, and their measured seconds."""
        self.add_logs(task, torch.from_numpy(np.log1p(features)).to(torch.float32), seconds)

    def add_logs(self, task: str, log_features: Tensor, seconds: Sequence[float]) -> None:
        """Add log(1 + feature), float32[n, stores, columns], and the measured seconds."""
        samples = self._tasks.setdefault(task, TaskSamples())
        samples.log_features += list(log_features)
        samples.seconds += [float(s) for s in seconds]

    def add_anchors(self, task: str, features: FeatureArray, scores: Tensor) -> None:
        """Add unmeasured points, float64[n, stores, columns], and their scores by the pretrained model,
        float32[members, n]."""
        samples = self._tasks.setdefault(task, TaskSamples())
        samples.anchors += list(torch.from_numpy(np.log1p(features)).to(torch.float32))
        samples.anchor_scores += list(scores.T)

    def anchors(self, task: str, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return (float32[n, stores, columns], float32[members, n]) of some anchors of a task."""
        samples = self._tasks[task]
        scores = torch.stack([samples.anchor_scores[r] for r in rows], dim=1)
        return stack([samples.anchors[r] for r in rows]), scores

    def tasks(self) -> tuple[str, ...]:
        """Return the keys of tasks with samples or anchors."""
        return tuple(self._tasks)

    def samples(self, task: str) -> TaskSamples:
        """Return the samples of a task."""
        return self._tasks[task]

    def batch(self, chosen: Sequence[tuple[str, Sequence[int]]]) -> Batch:
        """Return a batch of samples, given pairs of a task's key and indices of its samples."""
        most = max(len(rows) for _, rows in chosen)
        logs = [self._tasks[task].log_features[row] for task, rows in chosen for row in rows]
        present = torch.zeros(len(chosen), most)
        targets = torch.zeros(len(chosen), most)
        for place, (task, rows) in enumerate(chosen):
            present[place, : len(rows)] = 1.0
            targets[place, : len(rows)] = self._tasks[task].labels()[list(rows)]
        packed = stack(logs)
        spread = packed.new_zeros(len(chosen) * most, *packed.shape[1:])
        spread[present.reshape(-1) > 0] = packed
        return Batch(spread, targets, present)


def stack(log_features: Sequence[Tensor]) -> Tensor:
    """Stack features with different numbers of stores to float32[n, most stores, columns], padded with zeros."""
    most = max(len(x) for x in log_features)
    if all(len(x) == most for x in log_features):
        return torch.stack(list(log_features))
    return torch.stack([torch.nn.functional.pad(x, (0, 0, 0, most - len(x))) for x in log_features])
