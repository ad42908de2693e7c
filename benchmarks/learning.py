"""Measure how much the first measured candidates of an unseen workload improve a trained model on the rest.

Inputs: workloads, a trained network. Output: quality on the other candidates after a random sample was measured, and
the rank correlation of predicted spread and error.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from felixlike.costmodel import CostModel, Network
from felixlike.training import scores as training_scores
from felixlike.training.fit import Fit, fit
from felixlike.training.samples import Workload
from felixlike.training.scores import Quality, mean_quality, rank_correlation
from felixlike.training.split import held_out

SHOTS = (0, 8, 16, 32)
_DRAWS = 3
"""Number of random samples."""

Taught = dict[str, dict[str, float]]


def taught(workloads: Sequence[Workload], judged: Sequence[Workload], options: Fit) -> Taught:
    """Return, for every number of candidates, the mean quality on the others and the rank correlation of spread and
    error.

    `workloads` are for training, except those held out. `judged` are the workloads of one space, of which the
    held-out ones are evaluated.
    """
    learned = held_out(workloads)[0]
    judged_on = [w for w in held_out(judged)[1] if w.measured >= SHOTS[-1] + 16]
    if not learned or not judged_on:
        return {}
    trained = fit(learned, options).network
    by_shots: Taught = {}
    for shots in SHOTS:
        mean, sure = after(trained, judged_on, shots)
        by_shots[str(shots)] = {
            "rank": mean.rank,
            "top_1": mean.top_1,
            "top_5": mean.top_5,
            "spread": sure,
            "workloads": float(len(judged_on)),
        }
        print(f"after {shots}: {by_shots[str(shots)]}", flush=True)
    return by_shots


def text(by_shots: Taught) -> str:
    """Return a table."""
    if not by_shots:
        return ""
    count = next(iter(by_shots.values()))["workloads"]
    lines = [
        "### After some candidates of an unseen workload were measured",
        "",
        f"Of the other candidates of {count:.0f} workloads of MetaSchedule's space; spread and error: Spearman's",
        "correlation of the model's standard deviation and its distance from the truth.",
        "",
        "| measured | rank correlation | top-1 | top-5 | spread and error |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {shots} | {row['rank']:.2f} | {row['top_1']:.2f} | {row['top_5']:.2f} | {row['spread']:.2f} |"
        for shots, row in by_shots.items()
    ]
    return "\n".join(lines)


def after(trained: Network, workloads: Sequence[Workload], shots: int) -> tuple[Quality, float]:
    """Return mean quality, and rank correlation of spread and error, over workloads and samples."""
    pairs = [_after(trained, workload, shots, seed) for workload in workloads for seed in range(_DRAWS)]
    known = [pair for pair in pairs if pair is not None]
    return mean_quality([quality for quality, _ in known]), float(np.mean([sure for _, sure in known]))


def _after(trained: Network, workload: Workload, shots: int, seed: int) -> tuple[Quality, float] | None:
    """Evaluate one sample as a search does: measured candidates correct the predictions, and the network is not
    retrained.
    """
    model = CostModel(copy.deepcopy(trained), pretrained=True)
    chosen = np.random.default_rng(seed).permutation(len(workload))[: SHOTS[-1]]
    parts = [np.expm1(part.log_features.astype(np.float64)) for part in workload.parts]
    start = 0
    for features in parts:
        model.anchor(workload.key, features)
        rows = [place - start for place in chosen[:shots] if start <= place < start + len(features)]
        if rows:
            model.remember(workload.key, features[rows], [float(workload.seconds[start + row]) for row in rows])
        start += len(features)
    predictions = [model.predict_with_spread(features, workload.key) for features in parts]
    scores, spread = (np.concatenate(column) for column in zip(*predictions, strict=True))
    rest = np.ones(len(workload), dtype=bool)
    rest[chosen] = False
    quality = training_scores.judged(scores[rest], workload.seconds[rest])
    timed = rest & np.isfinite(workload.seconds)
    if quality is None or timed.sum() < 2:
        return None
    error = (scores + np.log(np.where(timed, workload.seconds, 1.0)))[timed]
    return quality, rank_correlation(spread[timed], np.abs(error - np.median(error)))
