"""Random points of sketches without a symbolic program: what they cost, and what comes where TVM refuses all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from felixlike.frontend import import_model
from felixlike.hardware import described_target
from felixlike.search import Observations, Random, Space
from felixlike.symbolic import Sketch


class _Rows(torch.nn.Module):
    """The products of all pairs of rows: both operands are the same buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()


def _space(model: torch.nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> Space:
    return Space(import_model(model.eval(), (torch.zeros(shape, dtype=dtype),), described_target("zen4")).tasks[0])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, ...]]:
    """How often TVM is asked about each point."""
    count: Counter[tuple[int, ...]] = Counter()
    schedule = Sketch.schedule

    def counted(sketch: Sketch, point: Sequence[int]) -> object:
        count[tuple(point)] += 1
        return schedule(sketch, point)

    monkeypatch.setattr(Sketch, "schedule", counted)
    return count


@pytest.mark.parametrize("shape", [(127, 139), (128, 129)])
def test_a_space_of_one_point_is_searched_once(shape: tuple[int, int], asked: Counter[tuple[int, ...]]) -> None:
    """A layer for one row, whose columns make up a single tile."""
    space = _space(torch.nn.Linear(*shape), 1, shape[0])
    (sketch,) = space.opaque
    assert not space.understood
    asked.clear()
    found = Random().propose(space, Observations(), 6, np.random.default_rng(0))
    assert [candidate.point for candidate in found] == [(1, 1, 10)]
    assert max(asked.values()) == 1
    assert asked.total() <= 9  # the ways to write 10 as a product of three factors
    np.testing.assert_array_equal(sketch.sample(5, seed=1), [[1, 1, 10]] * 5)


def test_points_of_sketches_that_are_not_understood_are_accepted_by_tvm(asked: Counter[tuple[int, ...]]) -> None:
    space = _space(_Rows(), 65, 65, dtype=torch.bfloat16)
    (sketch,) = space.opaque
    points = sketch.sample(20, seed=3)
    np.testing.assert_array_equal(points, sketch.sample(20, seed=3))
    assert max(asked.values()) == 1
    for point in points.tolist():
        assert sketch.accepts(point)


def test_where_tvm_refuses_everything_few_points_are_tried(
    monkeypatch: pytest.MonkeyPatch, asked: Counter[tuple[int, ...]]
) -> None:
    (sketch,) = _space(_Rows(), 65, 65, dtype=torch.bfloat16).opaque
    monkeypatch.setattr(Sketch, "accepts", lambda self, point: bool(asked.update([tuple(point)])))
    points = sketch.sample(1000, seed=0)
    assert points.shape == (1000, len(sketch.variables))
    assert asked.total() <= 64
