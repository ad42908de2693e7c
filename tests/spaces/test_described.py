"""A few operators on every described machine: schedules are found, understood, valid, run here and are right."""

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


def _own(task: Task) -> tuple[Sketch, ...]:
    found = sketches(task, space="own")
    assert found
    for sketch in found:
        assert sketch.understood, sketch.reason
    return found


@pytest.mark.parametrize("operator", CASES)
@pytest.mark.parametrize("machine", machines())
def test_points_are_valid_and_formulas_exact(machine: str, operator: str) -> None:
    for sketch in _own(_task(operator, described_target(machine))):
        points = sketch.sample(2, seed=3)
        assert equal_counts(sketch, points) > 10
        for point in points.tolist():
            assert list(sketch.point(sketch.schedule(point).trace)) == point


@pytest.mark.parametrize("cores", [1, 8, 64])
@pytest.mark.parametrize("operator", ["dense", "convolution", "softmax"])
def test_so_they_are_with_any_number_of_cores(operator: str, cores: int) -> None:
    for sketch in _own(_task(operator, described_target("zen4", cores=cores))):
        (point,) = points = sketch.sample(1, seed=3)
        assert equal_counts(sketch, points) > 10
        sketch.schedule(point.tolist())


@pytest.mark.parametrize("machine", machines())
def test_their_schedules_run_here_and_are_right(machine: str) -> None:
    target = imitated_target(machine)
    with MeasurePool(target) as pool:
        for operator in CASES:
            task = _task(operator, target)
            candidates = [Candidate(s, tuple(s.sample(1, seed=1)[0].tolist()), 0.0, "random") for s in _own(task)]
            for measured in pool.measure(task, candidates):
                assert measured.status is Status.OK, measured.message
