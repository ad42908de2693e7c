"""Write a record store of a synthetic machine for tests: products whose times are a function of their features."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from support.operators import conv1d, matmul

from felixlike import records
from felixlike.features import NAMES, formulas
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.measure import Measurement, Status
from felixlike.records import make_record
from felixlike.symbolic import Sketch, sketches

SIZES = ((32, 48, 40), (24, 64, 32), (40, 40, 64), (16, 96, 48), (64, 32, 32))


def tasks() -> list[Task]:
    """Return several products and one other operator."""
    return list(_tasks(str(resolve_target("cpu"))))


@cache
def _tasks(_: str) -> tuple[Task, ...]:
    """Return the tasks for a target, which the environment may change."""
    target = resolve_target("cpu")
    products = [make_task(matmul(*size), target, name="matmul") for size in SIZES]
    return (*products, *(make_task(conv1d(4, size, 6), target, name="conv1d") for size in (12, 16, 24)))


def seconds(sketch: Sketch, points: np.ndarray) -> list[float]:
    """Return the synthetic seconds: 1 µs for every hundred lines from L1 and moves."""
    features = formulas(sketch).evaluate(points)
    work = features[:, :, NAMES.index("traffic_l1")].sum(axis=1) / 64 + features[:, :, NAMES.index("moves")].sum(axis=1)
    result: list[float] = (1e-8 * (1.0 + work)).tolist()
    return result


_SKETCHES: dict[str, tuple[Sketch, ...]] = {}


def known_sketches(task: Task) -> tuple[Sketch, ...]:
    """Return two of MetaSchedule's sketches of a task, always the same objects, whose structures are built once."""
    if task.key not in _SKETCHES:
        _SKETCHES[task.key] = sketches(task)[:2]
    return _SKETCHES[task.key]


def write(path: Path, *, count: int = 20, device: str = "") -> None:
    """Store times of `count` random candidates of some sketches."""
    with records.open(path) as store:
        for task in tasks():
            for sketch in known_sketches(task):
                points = np.unique(sketch.sample(count, 0), axis=0)
                for point, time in zip(points.tolist(), seconds(sketch, points), strict=True):
                    measured = Measurement(Status.OK, time, (time,), error=0.0, device=device)
                    store.append(task, make_record(task, sketch.key, point, measured), sketch)
