"""Train the network by AdamW on batches of several tasks.

Inputs: a network, a dataset and a random generator. Output: the network, trained in place. It is used for pretraining
and, with few steps, during a search. Earlier samples remain in the dataset and are drawn again (replay).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from felixlike._util.torch_modes import default_modes
from felixlike.costmodel.dataset import Dataset
from felixlike.costmodel.loss import anchor_loss, loss
from felixlike.costmodel.mlp import Network


@dataclass(frozen=True, slots=True)
class Training:
    """Training options.

    Attributes:
        steps: Number of AdamW steps.
        tasks: Tasks per step.
        samples: Maximum number of samples per task and step.
        learning_rate: Learning rate, or its maximum if `warm` is set.
        decay: Weight decay.
        fresh: Share of a step's tasks that are `focus`, if there is one, 0 to 1.
        anchor: Weight of `anchor_loss` for tasks with anchors.
        warm: Share of the steps in which the learning rate rises to `learning_rate`, before it falls to 0 by a cosine
            (Smith 2018); None for a constant learning rate.
        loss: One of `loss.LOSSES`.
    """

    steps: int = 40
    tasks: int = 3
    samples: int = 64
    learning_rate: float = 1e-3
    decay: float = 1e-4
    fresh: float = 0.5
    anchor: float = 2.0
    warm: float | None = None
    loss: str = "both"


@default_modes()
def train(
    network: Network,
    dataset: Dataset,
    rng: np.random.Generator,
    *,
    options: Training | None = None,
    focus: str | None = None,
    observe: Callable[[int, float], bool] | None = None,
) -> float:
    """Train a network in place.

    Args:
        network: The network.
        dataset: The samples.
        rng: Source of random numbers.
        options: Training options; None for the defaults.
        focus: Key of a task that is drawn more often, such as the one just measured.
        observe: Called with each step's number, from 1, and its loss. Training ends early if it returns True.

    Returns:
        The mean loss of the last quarter of the steps; nan if no task has two samples.
    """
    options = options if options is not None else Training()
    usable = [t for t in dataset.tasks() if len(dataset.samples(t).seconds) > 1]
    if not usable:
        return float("nan")
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=options.decay)
    losses: list[float] = []
    for step in range(options.steps):
        optimizer.param_groups[0]["lr"] = _rate(step, options)
        optimizer.zero_grad()
        chosen = _draw(usable, focus, options, rng)
        rows = [(task, _some(len(dataset.samples(task).seconds), options.samples, rng)) for task in chosen]
        batch = dataset.batch(rows)
        scores = network(batch.log_features).view(network.members, *batch.labels.shape)
        total = loss(scores, batch.labels, batch.present, parts=options.loss) + sum(
            _held(network, dataset, task, options, rng) / len(chosen) for task in chosen
        )
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        losses.append(float(total.detach()))
        if observe is not None and observe(step + 1, losses[-1]):
            break
    return float(np.mean(losses[-max(1, len(losses) // 4) :]))


def _rate(step: int, options: Training) -> float:
    """Return the learning rate of a step, see `Training.warm`."""
    if options.warm is None:
        return options.learning_rate
    done, warm = (step + 1) / options.steps, max(options.warm, 1e-9)
    if done <= warm:
        return options.learning_rate * done / warm
    return options.learning_rate * 0.5 * (1.0 + float(np.cos(np.pi * (done - warm) / max(1.0 - warm, 1e-9))))


def _some(size: int, most: int, rng: np.random.Generator) -> list[int]:
    """Draw at most `most` of a task's samples; return their indices."""
    return [int(row) for row in rng.choice(size, size=min(size, most), replace=False)]


def _held(
    network: Network, dataset: Dataset, task: str, options: Training, rng: np.random.Generator
) -> torch.Tensor | float:
    """Return the weighted `anchor_loss` of a task; the weight falls as the number of measurements grows."""
    samples = dataset.samples(task)
    count = len(samples.anchors)
    if not count:
        return 0.0
    rows = rng.choice(count, size=min(count, options.samples), replace=False)
    features, before = dataset.anchors(task, rows.tolist())
    weight = options.anchor * min(1.0, options.samples / max(1, len(samples.seconds)))
    return weight * anchor_loss(network(features), before)


def _draw(usable: list[str], focus: str | None, options: Training, rng: np.random.Generator) -> list[str]:
    """Draw the tasks of one step."""
    chosen = [usable[i] for i in rng.choice(len(usable), size=options.tasks, replace=len(usable) < options.tasks)]
    if focus in usable:
        for i in range(round(options.tasks * options.fresh)):
            chosen[i] = focus
    return chosen
