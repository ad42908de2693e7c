"""From samples to weights: a network from nothing, stopped where workloads that it does not learn from are judged best.

In: workloads. Out: `Fitted`. The same seed gives the same weights on the same machine and versions.
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
    """steps: of Adam at most.  members, width: of the network.  check_every: steps between looks at the validation
    workloads.  patience: looks without a better one after which training ends.  tasks, samples, learning_rate, decay,
    loss: see `Training`.  trees: boosted beside the network; 0: none.  seed: of initial weights and batches."""

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
"""Of boosting; chosen by hand, other values were not tried."""


@dataclass(slots=True)
class Fitted:
    """steps: after which the network was best, or all.  history: (step, training loss, quality on the validation
    workloads) at each look."""

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
    """Train a network from nothing; with validation workloads, the best state that was met is kept.

    Raises InvalidOption where there is nothing to learn an order from."""
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
    """Boosted trees from a candidate's row to log(best / seconds) of its workload."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    parts = [(workload, part) for workload in workloads for part in workload.parts]
    rows = np.concatenate(
        [
            np.concatenate([summary_of_logs(part.log_features), per_operation(part.log_features)], axis=1)
            for _, part in parts
        ]
    )
    wanted = np.concatenate([labels(workload.seconds.tolist()) for workload in workloads])
    model = HistGradientBoostingRegressor(
        max_iter=options.trees, early_stopping=False, random_state=options.seed, **_TREES
    )
    return Trees.of(model.fit(rows, wanted))


def dataset_of(workloads: Sequence[Workload]) -> Dataset:
    """The samples of workloads; those of one task on two devices stay apart, since their times do not compare."""
    dataset = Dataset()
    for workload in workloads:
        for part in workload.parts:
            logs = torch.from_numpy(part.log_features)
            dataset.add_logs(f"{workload.key} {workload.device}", logs, part.seconds.tolist())
    return dataset


@default_modes()
def member_scores(network: Network, workload: Workload) -> Scores:
    """float64[members, n]: what each member of a network, with its trees, says of a workload's candidates, part after
    part."""
    found = [network.exact(torch.from_numpy(part.log_features)) for part in workload.parts]
    scores: Scores = torch.cat(found, dim=1).double().numpy()
    return scores


def scorer(network: Network) -> Scorer:
    """The mean score of a network's members, as `scores.judge` asks for it."""

    def score(workload: Workload) -> Scores:
        mean: Scores = member_scores(network, workload).mean(axis=0)
        return mean

    return score


def best_steps(workloads: Sequence[Workload], options: Fit) -> Fitted:
    """Train on a part of the workloads and judge on the rest: after how many steps to stop."""
    learned, validation = held_out(workloads, fold=1)
    if not learned or not validation:
        learned, validation = list(workloads), []
    return fit(learned, replace(options, trees=0), validation=validation)
