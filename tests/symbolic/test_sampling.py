"""Random points of non-symbolic sketches: number of calls of TVM, and points if TVM refuses all of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from felixlike.frontend import import_model
from felixlike.hardware import described_target
from felixlike.search import Observations, Random, Space
from felixlike.symbolic.replay.scheduler import Scheduler


class _Rows(torch.nn.Module):
    """Computes the products of all pairs of rows, so that both operands are the same buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()


def _space(model: torch.nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> Space:
    return Space(import_model(model.eval(), (torch.zeros(shape, dtype=dtype),), described_target("zen4")).tasks[0])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, ...]]:
    """Count how often TVM is asked to schedule each point."""
    count: Counter[tuple[int, ...]] = Counter()
    schedule = Scheduler.schedule

    def counted(scheduler: Scheduler, point: tuple[int, ...]) -> object:
        count[point] += 1
        return schedule(scheduler, point)

    monkeypatch.setattr(Scheduler, "schedule", counted)
    return count


@pytest.mark.parametrize("shape", [(127, 139), (128, 129)])
def test_a_space_with_one_point_is_scheduled_once(shape: tuple[int, int], asked: Counter[tuple[int, ...]]) -> None:
    """The space is of a layer with one row, whose columns are a single tile."""
    space = _space(torch.nn.Linear(*shape), 1, shape[0])
    (sketch,) = space.non_symbolic
    assert not space.symbolic
    asked.clear()
    candidates = Random().propose(space, Observations(), 6, np.random.default_rng(0))
    assert [candidate.point for candidate in candidates] == [(1, 1, 10)]
    assert max(asked.values()) == 1
    assert asked.total() <= 9  # the number of factorizations of 10 into three factors
    np.testing.assert_array_equal(sketch.sample(5, seed=1), [[1, 1, 10]] * 5)


def test_points_of_non_symbolic_sketches_are_accepted_by_tvm(asked: Counter[tuple[int, ...]]) -> None:
    space = _space(_Rows(), 65, 65, dtype=torch.bfloat16)
    (sketch,) = space.non_symbolic
    points = sketch.sample(20, seed=3)
    np.testing.assert_array_equal(points, sketch.sample(20, seed=3))
    assert max(asked.values()) == 1
    for point in points.tolist():
        assert sketch.accepts(point)


def test_few_points_are_tried_if_tvm_refuses_all(
    monkeypatch: pytest.MonkeyPatch, asked: Counter[tuple[int, ...]]
) -> None:
    (sketch,) = _space(_Rows(), 65, 65, dtype=torch.bfloat16).non_symbolic
    monkeypatch.setattr(Scheduler, "accepts", lambda self, point: bool(asked.update([point])))
    points = sketch.sample(1000, seed=0)
    assert points.shape == (1000, len(sketch.variables))
    assert asked.total() <= 64
