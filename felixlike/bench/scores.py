"""Compute how the predicted scores of all points are distributed that a search looks at (Felix, Fig. 8).

Inputs: a network, strategies, a design space. Output: for each of the network's heaviest tasks and each strategy, the
quantiles of the scores that the cost model's networks give to all points of the strategy's first round, before anything
is measured. Nothing is timed, so the result does not depend on the machine's load.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import costmodel
from felixlike.api import extract_tasks
from felixlike.bench.networks import NETWORKS, SMALL
from felixlike.bench.over_time import SPACES, STOCK, Job
from felixlike.costmodel import CostModel
from felixlike.features import FeatureArray
from felixlike.frontend import Task
from felixlike.hardware import kind_of
from felixlike.search import Candidate, Observations, Space, Strategy, make_strategy
from felixlike.search.strategy import by_sketch
from felixlike.tuning import one_thread
from felixlike.tuning.budget import TRIALS_PER_ROUND

QUANTILES = 101
"""Number of quantiles, from the smallest to the largest score."""

MOST_TASKS = 6
"""Upper limit on tasks of a network: those with the most operations. Chosen by hand."""

Scores = npt.NDArray[np.float64]


def score_rows(job: Job) -> list[dict[str, Any]]:
    """Return a row for each of a network's heaviest tasks.

    Args:
        job: The run whose strategy is looked at. Its seconds do not matter.

    Returns:
        Rows with the network, "batch", "space", "target" and "strategy" of the run, the name of the "task", the number
        of points "scored", their "scores" (QUANTILES quantiles of log(1 / latency) up to a constant of the task), and
        the best score of the points that would be "measured". There are none for stock MetaSchedule, whose model has
        other features.
    """
    if job.strategy == STOCK:
        return []
    rows = []
    for task in _tasks(job.network, job.batch, job.target):
        space = Space(task, SPACES[job.space])
        scores, chosen = first_round(space, make_strategy(job.strategy), job.seed) if space.symbolic else _NONE
        if len(scores):
            quantiles = np.quantile(scores, np.linspace(0.0, 1.0, QUANTILES))
            rows.append(
                {
                    **{field: getattr(job, field) for field in ("network", "batch", "space", "target", "strategy")},
                    "task": task.name,
                    "scored": len(scores),
                    "scores": [round(float(score), 4) for score in quantiles],
                    "measured": round(float(chosen.max()), 4) if len(chosen) else None,
                }
            )
    return rows


_NONE = (np.zeros(0), np.zeros(0))
"""Scores of a task whose space has no formulas."""


@lru_cache(maxsize=1)
def _tasks(network: str, batch: int, target: str) -> tuple[Task, ...]:
    """Return a network's heaviest tasks."""
    model, inputs = (NETWORKS | SMALL)[network](batch=batch)
    tasks = sorted(extract_tasks(model, inputs, target), key=lambda task: -task.weight * task.flops)
    return tuple(tasks[:MOST_TASKS])


def first_round(space: Space, strategy: Strategy, seed: int) -> tuple[Scores, Scores]:
    """Return the scores of all points that a strategy's first round looks at, and of those that it would measure.

    Strategies that do not use the cost model look at the points that they would measure. Points without formulas have
    no score.
    """
    recorder = _Recorder(costmodel.load(kind_of(space.task.target).device, seed=seed))
    with one_thread():
        strategy.begin(recorder)
        count = strategy.trials_per_round or TRIALS_PER_ROUND
        candidates = strategy.propose(space, Observations(), count, np.random.default_rng(seed))
        looked_at = np.concatenate([np.zeros(0), *recorder.scores])
        chosen = _scores(space, recorder, candidates)
    return looked_at if len(looked_at) else chosen, chosen


def _scores(space: Space, model: CostModel, candidates: Sequence[Candidate]) -> Scores:
    """Return the networks' scores of candidates that have formulas."""
    scores = [np.zeros(0)]
    symbolic = [candidate for candidate in candidates if candidate.sketch.is_symbolic]
    for sketch, places in by_sketch(symbolic):
        features = space.features(sketch, np.array([symbolic[i].point for i in places], dtype=np.int64))
        if features is not None:
            scores.append(model.predict_with_spread(features, trees=False)[0])
    return np.concatenate(scores)


class _Recorder(CostModel):
    """A cost model that records the scores which its networks alone give to the points it is asked about.

    Attributes:
        scores: The scores, an array for each call.
    """

    def __init__(self, model: CostModel) -> None:
        self.__dict__.update(model.__dict__)
        self.scores: list[Scores] = []

    def predict_with_spread(
        self, features: FeatureArray, task: str | None = None, *, trees: bool = True
    ) -> tuple[Scores, Scores]:
        """See `CostModel.predict_with_spread`."""
        self.scores.append(super().predict_with_spread(features, trees=False)[0])
        return super().predict_with_spread(features, task, trees=trees)
