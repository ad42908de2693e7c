"""`Predicted` proposes the schedules with the best predictions, best first, without smooth formulas."""

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


def _fail_if_smoothed(*_: object, **__: object) -> None:
    raise AssertionError("smooth formulas were made")


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(make_task(workloads.matmul(32, 16, 24), resolve_target("cpu"), name="matmul"), "default")


def _features(parallel: float, iterations: float) -> FeatureArray:
    """Return the features of one schedule with one store."""
    features = np.zeros((1, 1, len(NAMES)))
    features[..., NAMES.index("parallel_extent")] = parallel
    features[..., NAMES.index("iterations")] = iterations
    features[..., NAMES.index("vector_extent")] = 1.0
    return features


def test_the_best_come_first_without_smooth_formulas(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.search.space.relax", _fail_if_smoothed)
    model = CostModel(seed=1, pretrained=True)
    first = Predicted(model).propose(space, Observations(), 6, np.random.default_rng(0))
    scores = [candidate.score for candidate in first]
    assert scores == sorted(scores, reverse=True)
    assert all(candidate.sketch.valid(np.array([candidate.point])).all() for candidate in first)
    others = Predicted(model).propose(space, Observations({c.key for c in first[:2]}), 4, np.random.default_rng(0))
    assert [c.key for c in others] == [c.key for c in first[2:]]


def test_an_untrained_model_proposes_random_candidates(space: Space) -> None:
    sampled = Predicted(CostModel()).propose(space, Observations(), 5, np.random.default_rng(0))
    assert len({c.key for c in sampled}) == 5
    assert all(math.isnan(c.score) for c in sampled)


@pytest.mark.parametrize(("parallel", "times"), [(1, 4.0), (2, 2.0), (4, 1.0), (5, 8 / 5), (6, 4 / 3), (400, 1.0)])
def test_idle_cores_slow_a_schedule_down(parallel: float, times: float) -> None:
    assert sharing(_features(parallel, 1e9), 4) == pytest.approx(times, rel=1e-3)


def test_short_loops_are_faster_on_one_core() -> None:
    assert sharing(_features(1, 1e3), 2) < sharing(_features(2, 1e3), 2)
    assert sharing(_features(1, 1e6), 2) > sharing(_features(2, 1e6), 2)
