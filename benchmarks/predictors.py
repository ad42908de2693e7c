"""Models of the same job behind one interface: ours and its variants, xgboost, random forest, on our features or TVM's.

In: workloads to learn from. Out: a `Scorer`. Trees take a candidate as one row: of every column the sum over its stores
and the largest, in logarithms.
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
    """name: for tables.  learn: from workloads to what scores others."""

    name: str
    learn: Callable[[Sequence[Workload]], Scorer]


def network(name: str, options: Fit) -> Predictor:
    """Ours."""
    return Predictor(name, lambda workloads: scorer(fit(workloads, options).network))


def cold() -> Predictor:
    """Ours before it has seen anything: the bottlenecks with their first costs."""
    return Predictor("cold start (bottlenecks)", lambda _: scorer(Network(seed=0)))


def xgboost(name: str, featurise: Featurise, *, ranking: bool) -> Predictor:
    """Gradient-boosted trees, as MetaSchedule's model is: 300 of depth 8."""

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
    """Our features, with the ratios that the network sees too."""
    return np.concatenate([summary_of_logs(part.log_features) for part in workload.parts])


def ours_per_operation(workload: Workload) -> Rows:
    """The same with counts per operation, and the row of the busiest store."""
    return np.concatenate(
        [ours(workload), np.concatenate([per_operation(part.log_features) for part in workload.parts])], axis=1
    )


def tvms(folder: Path, store_tasks: dict[str, Any]) -> Featurise:
    """TVM's PerStoreFeature of every candidate, kept in a folder, since they cost milliseconds each.

    store_tasks: the tasks by key."""

    def featurise(workload: Workload) -> Rows:
        kept = folder / f"{workload.key}-{len(workload)}.npy"
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            np.save(kept, _extracted(workload, store_tasks[workload.key]))
        found: Rows = np.load(kept)
        return found

    return featurise


def _extracted(workload: Workload, task: Any) -> Rows:
    from support.oracles.tvm import tvm_features

    from felixlike.errors import InvalidSchedule
    from felixlike.symbolic import sketches

    by_key = {sketch.key: sketch for sketch in sketches(task, space="all")}
    found: list[Any] = []
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
            found.append(np.nan_to_num(row.astype(np.float32)))
    return np.stack(found)
