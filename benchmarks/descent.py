"""Test whether gradient descent reduces measured latency: python -m benchmarks.descent [--seeds 4] [--tasks 10].

Adam starts from random valid points of tasks that the cost model was not trained on, in MetaSchedule's space, and
minimizes the predicted latency. The baseline of each path is a straight path of equal length in a random direction.
Every few steps both are rounded to the nearest valid points, which are measured. If the predictions are informative,
the measured latency falls along Adam's path and not along the random one. The benchmark writes
docs/results/descent.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.results import FOLDER, geometric_mean, write_for_this_machine
from benchmarks.subgraphs import SUBGRAPHS
from felixlike.costmodel import CostModel, load
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.measure import MeasurePool, Status
from felixlike.search import Candidate, Space
from felixlike.search.descent import Descent, Start, descend
from felixlike.search.rounding import round_points
from felixlike.symbolic import Points, Sketch
from felixlike.tuning import one_thread

_STEPS, _EVERY = 40, 8


@dataclass(frozen=True, slots=True)
class Path:
    """One path. `adam` and `random` hold seconds at each checkpoint; nan if the rounded point is invalid or fails to
    build.
    """

    task: str
    adam: list[float]
    random: list[float]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="of each task")
    parser.add_argument("--tasks", type=int, default=10)
    arguments = parser.parse_args()
    model = load("cpu")
    paths: list[Path] = []
    with one_thread():
        for name, make in list(SUBGRAPHS.items())[: arguments.tasks]:
            task = make_task(make(), resolve_target("cpu"), name=name)
            with MeasurePool(task.target) as pool:
                paths += _paths(name, Space(task, "default"), model, pool, arguments.seeds)
            print(f"{name}: {_factors(paths[-arguments.seeds :], 'adam')[-1]:.2f}", flush=True)
    rows = {side: _factors(paths, side) for side in ("adam", "random")}
    write_for_this_machine("descent", {"paths": [asdict(p) for p in paths], "factors": rows}, _text(paths, rows))
    _plot(rows)


def _paths(name: str, space: Space, model: CostModel, pool: MeasurePool, count: int) -> list[Path]:
    """Return paths from points of the sketch with the most variables."""
    sketch = max(space.symbolic, key=lambda s: len(s.variables))
    rng = np.random.default_rng(0)
    seeds = sketch.sample(count, 0, paths=1)
    options = Descent(steps=_STEPS, keep_every=_EVERY)
    relaxed = space.relaxed(sketch)
    (positions,) = descend([Start(relaxed, seeds, np.zeros(seeds.shape))], model, options)
    checkpoints = positions.reshape(-1, count, seeds.shape[1])
    lengths = np.linalg.norm(checkpoints - checkpoints[0], axis=2)
    direction = rng.normal(size=checkpoints[0].shape) * (np.abs(checkpoints[-1] - checkpoints[0]).sum(axis=0) > 0)
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
    straight = checkpoints[0] + lengths[:, :, None] * direction
    seconds = [_measured(sketch, side, pool, space) for side in (checkpoints, straight)]
    return [Path(name, seconds[0][:, i].tolist(), seconds[1][:, i].tolist()) for i in range(count)]


def _measured(sketch: Sketch, checkpoints: Any, pool: MeasurePool, space: Space) -> Any:
    """Return seconds at the rounded points, float64[checkpoints, seeds]."""
    shape = checkpoints.shape[:2]
    points: Points = round_points(sketch, checkpoints.reshape(-1, checkpoints.shape[2]))
    good = sketch.valid(points)
    unique_points = sorted({tuple(point) for point in points[good].tolist()})
    candidates = [Candidate(sketch, point, float("nan"), "descent") for point in unique_points]
    measurements = dict(zip(unique_points, pool.measure(space.task, candidates), strict=True))
    times = [
        measurements[tuple(p)].seconds if ok and measurements[tuple(p)].status is Status.OK else math.nan
        for p, ok in zip(points.tolist(), good, strict=True)
    ]
    return np.array(times).reshape(shape)


def _factors(paths: list[Path], side: str) -> list[float]:
    """Return, for each checkpoint, the geometric mean of latency ÷ initial latency over paths that have both."""
    factors = []
    for look in range(len(getattr(paths[0], side))):
        ratios = [getattr(p, side)[look] / getattr(p, side)[0] for p in paths]
        known = [ratio for ratio in ratios if math.isfinite(ratio)]
        factors.append(geometric_mean(known) if known else math.nan)
    return factors


def _text(paths: list[Path], rows: dict[str, list[float]]) -> str:
    steps = [min(look * _EVERY, _STEPS) for look in range(len(rows["adam"]))]
    lower = [p.adam[-1] < p.adam[0] for p in paths if math.isfinite(p.adam[-1] / p.adam[0])]
    lines = [
        f"{len(paths)} walks in {len({p.task for p in paths})} tasks. Geometric mean of the measured latency ÷ that of "
        "the starting point, at the nearest valid points.",
        "",
        f"| step | {' | '.join(map(str, steps))} |",
        f"| --- |{' --- |' * len(steps)}",
        *(f"| {side} | {' | '.join(f'{x:.2f}' for x in factors)} |" for side, factors in rows.items()),
        "",
        f"Adam's end is faster than its start in {statistics.fmean(lower):.0%} of {len(lower)} walks.",
        "",
        "![Measured latency along the way](descent.svg)",
    ]
    return "\n".join(lines)


def _plot(rows: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4))
    for side, label in (("adam", "Adam, along the predicted latency"), ("random", "a random direction, as long")):
        steps = [min(look * _EVERY, _STEPS) for look in range(len(rows[side]))]
        axis.plot(steps, rows[side], marker="o", label=label)
    axis.set(xlabel="steps of Adam", ylabel="measured latency ÷ start", yscale="log")
    axis.legend()
    figure.tight_layout()
    figure.savefig(FOLDER / "descent.svg")


if __name__ == "__main__":
    main()
