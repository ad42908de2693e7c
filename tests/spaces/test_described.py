"""A few operators on every hardware preset: schedules exist, are symbolic and valid, run here and are correct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from schedules import equal_counts
from support import operators as op

from felixlike.frontend.task import Task, make_task
from felixlike.hardware import described_target, imitated_target, machines
from felixlike.measure import MeasurePool, Status
from felixlike.search import Candidate
from felixlike.symbolic import Sketch, sketches

CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "dense": (lambda: op.dense(6, 8, 32), (1,)),
    "convolution": (lambda: op.conv2d(4, 6, 32), (1,)),
    "depthwise": (lambda: op.depthwise(6, 16), (1,)),
    "softmax": (lambda: op.softmax(4, 32), ()),
    "transpose": (lambda: op.transpose(2, 16, 32), ()),
}


def _task(name: str, target: Any) -> Task:
    make, constants = CASES[name]
    return make_task(make(), target, name=name, constants=constants)


def _own_sketches(task: Task) -> tuple[Sketch, ...]:
    own_sketches = sketches(task, space="own")
    assert own_sketches
    for sketch in own_sketches:
        assert sketch.is_symbolic, sketch.reason
    return own_sketches


@pytest.mark.parametrize("operator", CASES)
@pytest.mark.parametrize("machine", machines())
def test_points_are_valid_and_formulas_exact(machine: str, operator: str) -> None:
    for sketch in _own_sketches(_task(operator, described_target(machine))):
        points = sketch.sample(2, seed=3)
        assert equal_counts(sketch, points) > 10
        for point in points.tolist():
            assert list(sketch.point(sketch.schedule(point).trace)) == point


@pytest.mark.parametrize("cores", [1, 8, 64])
@pytest.mark.parametrize("operator", ["dense", "convolution", "softmax"])
def test_points_are_valid_with_any_number_of_cores(operator: str, cores: int) -> None:
    for sketch in _own_sketches(_task(operator, described_target("zen4", cores=cores))):
        (point,) = points = sketch.sample(1, seed=3)
        assert equal_counts(sketch, points) > 10
        sketch.schedule(point.tolist())


@pytest.mark.parametrize("machine", machines())
def test_schedules_of_every_machine_run_here_and_are_correct(machine: str) -> None:
    target = imitated_target(machine)
    with MeasurePool(target) as pool:
        for operator in CASES:
            task = _task(operator, target)
            candidates = [
                Candidate(s, tuple(s.sample(1, seed=1)[0].tolist()), 0.0, "random") for s in _own_sketches(task)
            ]
            for measurement in pool.measure(task, candidates):
                assert measurement.status is Status.OK, measurement.message
