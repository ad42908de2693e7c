"""Train a cost model from random weights, with early stopping on validation workloads.

The input is workloads, the output a `Fitted`. The same seed gives the same weights on the same machine and versions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import Dataset, Network, Training, train
from felixlike.costmodel.boosted_trees import Trees
from felixlike.costmodel.dataset import labels
from felixlike.costmodel.summary import per_operation, summary_of_logs
from felixlike.training.samples import Workload, nothing_to_learn
from felixlike.training.scores import Quality, Scorer, Scores, judge, mean_quality
from felixlike.training.split import held_out


@dataclass(frozen=True, slots=True)
class Fit:
    """Options of training.

    Attributes:
        steps: Largest number of optimizer steps (Adam).
        members: Number of members of the network's ensemble.
        width: Width of the network's layers.
        check_every: Steps between evaluations on the validation workloads.
        patience: Number of evaluations without improvement after which training stops.
        tasks: See `Training`.
        samples: See `Training`.
        learning_rate: See `Training`.
        decay: See `Training`.
        loss: See `Training`.
        trees: Number of boosted trees beside the network; 0 for none.
        seed: Seed of the initial weights, the batches and the trees.
    """

    steps: int = 800
    members: int = 3
    width: int = 192
    check_every: int = 200
    patience: int = 4
    tasks: int = 8
    samples: int = 48
    learning_rate: float = 2e-3
    decay: float = 1e-2
    loss: str = "all"
    trees: int = 200
    seed: int = 0


_TREES = {"learning_rate": 0.08, "max_leaf_nodes": 48, "min_samples_leaf": 8, "max_features": 0.3}
"""Options of HistGradientBoostingRegressor; chosen by hand, other values were not tried."""


@dataclass(slots=True)
class Fitted:
    """Result of training.

    Attributes:
        network: The trained network, with its trees.
        steps: Number of steps after which the network was best; all of them without validation.
        history: (step, mean training loss, quality on the validation workloads) of each evaluation.
    """

    network: Network
    steps: int
    history: list[tuple[int, float, Quality]] = field(default_factory=list)


@default_modes()
def fit(
    workloads: Sequence[Workload],
    options: Fit | None = None,
    *,
    validation: Sequence[Workload] = (),
    observe: Callable[[int, float, Quality | None], None] = lambda *_: None,
) -> Fitted:
    """Train a network from random weights.

    Args:
        workloads: Training data.
        options: Options of training; None for the defaults.
        validation: Workloads for early stopping. With them, the network has the weights of the best evaluation.
        observe: Called after each evaluation with the step, the mean loss and the quality (None without validation).

    Raises:
        InvalidOption: No workload has two measured candidates.
    """
    options = options if options is not None else Fit()
    dataset = dataset_of(workloads)
    if not len(dataset):
        raise nothing_to_learn("fit")
    network = Network(seed=options.seed, members=options.members, width=options.width)
    logs = [x for key in dataset.tasks() for x in dataset.samples(key).log_features]
    network.standardise(torch.cat(logs))
    fitted = Fitted(network, options.steps)
    best: tuple[float, dict[str, Any]] | None = None
    waited = 0
    losses: list[float] = []

    def look(step: int, loss: float) -> bool:
        nonlocal best, waited
        losses.append(loss)
        if step % options.check_every and step != options.steps:
            return False
        mean_loss = float(np.mean(losses))
        losses.clear()
        if not validation:
            observe(step, mean_loss, None)
            return False
        quality = mean_quality([q for _, q in judge(scorer(network), validation)])
        fitted.history.append((step, mean_loss, quality))
        observe(step, mean_loss, quality)
        merit = quality.rank + quality.top_1 + quality.top_5
        if best is None or merit > best[0]:
            best, waited, fitted.steps = (merit, copy.deepcopy(network.state_dict())), 0, step
        else:
            waited += 1
        return waited >= options.patience

    train(
        network,
        dataset,
        np.random.default_rng(options.seed),
        options=Training(
            steps=options.steps,
            tasks=options.tasks,
            samples=options.samples,
            learning_rate=options.learning_rate,
            decay=options.decay,
            warm=0.1,
            loss=options.loss,
        ),
        observe=look,
    )
    if best is not None:
        network.load_state_dict(best[1])
    if options.trees:
        network.trees = grown(workloads, options)
    return fitted


def grown(workloads: Sequence[Workload], options: Fit) -> Trees:
    """Fit boosted trees that predict log(best / seconds) within the workload from a candidate's features."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    pairs = [(workload, part) for workload in workloads for part in workload.parts]
    rows = np.concatenate(
        [
            np.concatenate([summary_of_logs(part.log_features), per_operation(part.log_features)], axis=1)
            for _, part in pairs
        ]
    )
    targets = np.concatenate([labels(workload.seconds.tolist()) for workload in workloads])
    model = HistGradientBoostingRegressor(
        max_iter=options.trees, early_stopping=False, random_state=options.seed, **_TREES
    )
    return Trees.of(model.fit(rows, targets))


def dataset_of(workloads: Sequence[Workload]) -> Dataset:
    """Return the workloads' samples, with a task for each device, since times of two devices are not comparable."""
    dataset = Dataset()
    for workload in workloads:
        for part in workload.parts:
            logs = torch.from_numpy(part.log_features)
            dataset.add_logs(f"{workload.key} {workload.device}", logs, part.seconds.tolist())
    return dataset


@default_modes()
def member_scores(network: Network, workload: Workload) -> Scores:
    """Return each member's scores of a workload's candidates, part by part, including the network's trees.

    Returns:
        float64[members, n]; higher is faster.
    """
    member_parts = [network.exact(torch.from_numpy(part.log_features)) for part in workload.parts]
    scores: Scores = torch.cat(member_parts, dim=1).double().numpy()
    return scores


def scorer(network: Network) -> Scorer:
    """Return a function for `scores.judge` that computes the mean score of a network's members."""

    def score(workload: Workload) -> Scores:
        mean: Scores = member_scores(network, workload).mean(axis=0)
        return mean

    return score


def best_steps(workloads: Sequence[Workload], options: Fit) -> Fitted:
    """Determine the number of steps: train without trees on some of the workloads and validate on the others."""
    learned, validation = held_out(workloads, fold=1)
    if not learned or not validation:
        learned, validation = list(workloads), []
    return fit(learned, replace(options, trees=0), validation=validation)
