"""Define rankers with one interface: felixlike's model and variants, xgboost, random forest, on felixlike's or TVM's
features.

Input: training workloads. Output: a `Scorer`. Tree models use one row per candidate: the logarithms of each column's
sum and maximum over the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from felixlike.costmodel import Network
from felixlike.costmodel.dataset import labels
from felixlike.costmodel.summary import Rows, per_operation, summary_of_logs
from felixlike.training.fit import Fit, fit, scorer
from felixlike.training.samples import Workload
from felixlike.training.scores import Scorer

Featurise = Callable[[Workload], Rows]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model with a `name` for tables. `learn` trains on workloads and returns a scorer."""

    name: str
    learn: Callable[[Sequence[Workload]], Scorer]


def network(name: str, options: Fit) -> Predictor:
    """felixlike's model."""
    return Predictor(name, lambda workloads: scorer(fit(workloads, options).network))


def cold() -> Predictor:
    """felixlike's model before training: the bottlenecks with their initial costs."""
    return Predictor("cold start (bottlenecks)", lambda _: scorer(Network(seed=0)))


def xgboost(name: str, featurise: Featurise, *, ranking: bool) -> Predictor:
    """Gradient-boosted trees with MetaSchedule's settings: 300 trees of depth 8."""

    def learn(workloads: Sequence[Workload]) -> Scorer:
        import xgboost as xgb

        x = np.concatenate([featurise(w) for w in workloads])
        y = np.concatenate([labels(w.seconds.tolist()) for w in workloads])
        common = {"max_depth": 8, "eta": 0.1, "nthread": 1, "subsample": 0.8, "colsample_bytree": 0.3, "seed": 0}
        if ranking:
            groups = np.concatenate([np.full(len(w), i) for i, w in enumerate(workloads)])
            data = xgb.DMatrix(x, label=np.exp(y), qid=groups)
            kind = {"objective": "rank:pairwise", "lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 8}
        else:
            data, kind = xgb.DMatrix(x, label=y), {"objective": "reg:squarederror"}
        booster = xgb.train({**common, **kind}, data, 300)
        return lambda workload: np.asarray(booster.predict(xgb.DMatrix(featurise(workload))), dtype=np.float64)

    return Predictor(name, learn)


def forest(name: str, featurise: Featurise) -> Predictor:
    """A random forest, AdaTune's model (Li et al. 2020, §4.2)."""

    def learn(workloads: Sequence[Workload]) -> Scorer:
        from sklearn.ensemble import RandomForestRegressor

        x = np.concatenate([featurise(w) for w in workloads])
        y = np.concatenate([labels(w.seconds.tolist()) for w in workloads])
        model = RandomForestRegressor(n_estimators=60, max_features=0.3, min_samples_leaf=2, random_state=0, n_jobs=1)
        model.fit(x, y)
        return lambda workload: np.asarray(model.predict(featurise(workload)), dtype=np.float64)

    return Predictor(name, learn)


def ours(workload: Workload) -> Rows:
    """Return felixlike's features with the ratios that the network also uses."""
    return np.concatenate([summary_of_logs(part.log_features) for part in workload.parts])


def ours_per_operation(workload: Workload) -> Rows:
    """Return the same features with counts per operation and the row of the busiest store."""
    return np.concatenate(
        [ours(workload), np.concatenate([per_operation(part.log_features) for part in workload.parts])], axis=1
    )


def tvms(folder: Path, store_tasks: dict[str, Any]) -> Featurise:
    """Return a function that computes TVM's PerStoreFeature of every candidate, cached in a folder (milliseconds
    each).

    `store_tasks` maps keys to tasks.
    """

    def featurise(workload: Workload) -> Rows:
        cached = folder / f"{workload.key}-{len(workload)}.npy"
        if not cached.exists():
            folder.mkdir(parents=True, exist_ok=True)
            np.save(cached, _extracted(workload, store_tasks[workload.key]))
        rows: Rows = np.load(cached)
        return rows

    return featurise


def _extracted(workload: Workload, task: Any) -> Rows:
    from support.oracles.tvm import tvm_features

    from felixlike.errors import InvalidSchedule
    from felixlike.symbolic import sketches

    by_key = {sketch.key: sketch for sketch in sketches(task, space="all")}
    feature_rows: list[Any] = []
    for part in workload.parts:
        for point in part.points.tolist():
            row = np.zeros(2 * 164, dtype=np.float32)
            sketch = by_key.get(part.sketch)
            if sketch is not None:
                try:
                    rows = tvm_features(sketch, sketch.schedule(point))
                except InvalidSchedule:
                    rows = np.zeros((1, 164))
                row = np.concatenate([np.log1p(np.expm1(np.clip(rows, 0, 60)).sum(axis=0)), rows.max(axis=0)])
            feature_rows.append(np.nan_to_num(row.astype(np.float32)))
    return np.stack(feature_rows)
