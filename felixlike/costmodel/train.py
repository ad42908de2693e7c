"""Training: a number of steps of Adam over batches, each of one task.

In: a network, a dataset, a random generator. Out: the network, changed. Used for pretraining and, with few steps,
after every round of a search; earlier samples stay in the dataset and are drawn again (replay), so that nothing is
forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from felixlike.costmodel.dataset import Dataset
from felixlike.costmodel.loss import anchor_loss, loss
from felixlike.costmodel.mlp import Network
from felixlike.modes import own_modes


@dataclass(frozen=True, slots=True)
class Training:
    """steps: of Adam.  tasks: different tasks in one step.  samples: most samples of a task in one step.
    fresh: share of a step's tasks that are `focus`, where given.  decay: weight decay.  anchor: weight of staying
    close to what the model thought of unmeasured points before, where a task has such."""

    steps: int = 40
    tasks: int = 3
    samples: int = 64
    learning_rate: float = 1e-3
    decay: float = 1e-4
    fresh: float = 0.5
    anchor: float = 2.0


@own_modes()
def train(
    network: Network,
    dataset: Dataset,
    rng: np.random.Generator,
    *,
    options: Training | None = None,
    focus: str | None = None,
) -> float:
    """Train in place; returns the mean loss of the last quarter of the steps (nan where no task has two samples).

    focus: a task that is drawn more often: the one just measured."""
    options = options if options is not None else Training()
    usable = [t for t in dataset.tasks() if len(dataset.samples(t).seconds) > 1]
    if not usable:
        return float("nan")
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=options.decay)
    losses: list[float] = []
    for _ in range(options.steps):
        optimizer.zero_grad()
        total = torch.zeros(())
        for task in _draw(usable, focus, options, rng):
            size = len(dataset.samples(task).seconds)
            rows = rng.choice(size, size=min(size, options.samples), replace=False)
            features, labels = dataset.batch(task, rows.tolist())
            total = total + loss(network(features), labels) + _held(network, dataset, task, options, rng)
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        losses.append(float(total.detach()) / options.tasks)
    return float(np.mean(losses[-max(1, len(losses) // 4) :]))


def _held(
    network: Network, dataset: Dataset, task: str, options: Training, rng: np.random.Generator
) -> torch.Tensor | float:
    """The pull towards what was believed before the first measurement, weaker the more there are."""
    samples = dataset.samples(task)
    count = len(samples.anchors)
    if not count:
        return 0.0
    rows = rng.choice(count, size=min(count, options.samples), replace=False)
    features, before = dataset.anchors(task, rows.tolist())
    weight = options.anchor * min(1.0, options.samples / max(1, len(samples.seconds)))
    return weight * anchor_loss(network(features), before)


def _draw(usable: list[str], focus: str | None, options: Training, rng: np.random.Generator) -> list[str]:
    """Tasks for one step."""
    chosen = [usable[i] for i in rng.integers(len(usable), size=options.tasks)]
    if focus in usable:
        for i in range(round(options.tasks * options.fresh)):
            chosen[i] = focus
    return chosen
