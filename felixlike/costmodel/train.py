"""Training: a number of steps of Adam over batches of several tasks.

In: a network, a dataset, a random generator. Out: the network, changed. Used for pretraining and, with few steps,
after every round of a search; earlier samples stay in the dataset and are drawn again (replay), so that nothing is
forgotten.
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
    """steps: of Adam.  tasks: different tasks in one step.  samples: most samples of a task in one step.
    fresh: share of a step's tasks that are `focus`, where given.  decay: weight decay.  anchor: weight of staying
    close to what the model thought of unmeasured points before, where a task has such.  warm: share of the steps in
    which the learning rate rises to `learning_rate`, after which it falls to nothing by a cosine (Smith 2018); None: it
    stays.  loss: see `loss.LOSSES`."""

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
    """Train in place; returns the mean loss of the last quarter of the steps (nan where no task has two samples).

    focus: a task that is drawn more often: the one just measured.  observe: told each step's number, from 1 on, and its
    loss; training ends early where it returns True."""
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
    """The learning rate of a step, see `Training.warm`."""
    if options.warm is None:
        return options.learning_rate
    done, warm = (step + 1) / options.steps, max(options.warm, 1e-9)
    if done <= warm:
        return options.learning_rate * done / warm
    return options.learning_rate * 0.5 * (1.0 + float(np.cos(np.pi * (done - warm) / max(1.0 - warm, 1e-9))))


def _some(size: int, most: int, rng: np.random.Generator) -> list[int]:
    """At most so many of a task's samples."""
    return [int(row) for row in rng.choice(size, size=min(size, most), replace=False)]


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
    chosen = [usable[i] for i in rng.choice(len(usable), size=options.tasks, replace=len(usable) < options.tasks)]
    if focus in usable:
        for i in range(round(options.tasks * options.fresh)):
            chosen[i] = focus
    return chosen
