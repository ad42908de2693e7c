"""The best schedules by prediction alone: no smooth formulas, the best first, work shared among cores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import workloads

from felixlike.costmodel import CostModel
from felixlike.features import NAMES, FeatureArray
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.search import Observations, Predicted, Space
from felixlike.search.predicted import sharing


def _nothing_smooth(*_: object, **__: object) -> None:
    raise AssertionError("smooth formulas were made")


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(make_task(workloads.matmul(32, 16, 24), resolve_target("cpu"), name="matmul"), "default")


def _features(parallel: float, iterations: float) -> FeatureArray:
    """Of one schedule with one store."""
    found = np.zeros((1, 1, len(NAMES)))
    found[..., NAMES.index("parallel_extent")] = parallel
    found[..., NAMES.index("iterations")] = iterations
    found[..., NAMES.index("vector_extent")] = 1.0
    return found


def test_the_best_come_first_and_nothing_is_smoothed(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.search.space.relax", _nothing_smooth)
    model = CostModel(seed=1, pretrained=True)
    first = Predicted(model).propose(space, Observations(), 6, np.random.default_rng(0))
    scores = [candidate.score for candidate in first]
    assert scores == sorted(scores, reverse=True)
    assert all(candidate.sketch.valid(np.array([candidate.point])).all() for candidate in first)
    others = Predicted(model).propose(space, Observations({c.key for c in first[:2]}), 4, np.random.default_rng(0))
    assert [c.key for c in others] == [c.key for c in first[2:]]


def test_a_model_that_knows_nothing_leaves_it_to_chance(space: Space) -> None:
    drawn = Predicted(CostModel()).propose(space, Observations(), 5, np.random.default_rng(0))
    assert len({c.key for c in drawn}) == 5
    assert all(math.isnan(c.score) for c in drawn)


@pytest.mark.parametrize(("parallel", "times"), [(1, 4.0), (2, 2.0), (4, 1.0), (5, 8 / 5), (6, 4 / 3), (400, 1.0)])
def test_cores_without_work_are_waited_for(parallel: float, times: float) -> None:
    assert sharing(_features(parallel, 1e9), 4) == pytest.approx(times, rel=1e-3)


def test_what_is_soon_done_is_not_handed_out() -> None:
    assert sharing(_features(1, 1e3), 2) < sharing(_features(2, 1e3), 2)
    assert sharing(_features(1, 1e6), 2) > sharing(_features(2, 1e6), 2)
