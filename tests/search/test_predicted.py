"""`Predicted` proposes the schedules with the best predictions, best first, without smooth formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import workloads

from felixlike.costmodel import CostModel
from felixlike.features import NAMES, FeatureArray
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.search import Candidate, Observations, Predicted, Space
from felixlike.search.predicted import _ranked, sharing
from felixlike.symbolic import Sketch


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


def test_cpus_prefer_rounded_factors_and_keep_one_candidate_that_rounds_nothing() -> None:
    """Rules offer them where they are faster. Scores decide within a precision."""
    names = ["float32", "bfloat16", "float32", "bfloat16", "bfloat16"]
    precisions = [cast("Sketch", SimpleNamespace(precision=name)) for name in names]
    candidates = [Candidate(sketch, (n,), -float(n), "predicted") for n, sketch in enumerate(precisions)]
    places = {
        (count, host): [c.point[0] for c in _ranked(candidates, count, on_host=host)]
        for count in (1, 2, 3, 9)
        for host in (True, False)
    }
    assert [places[count, True] for count in (1, 2, 3, 9)] == [[1], [1, 0], [1, 3, 0], [1, 3, 4, 0, 2]]
    assert places[9, False] == [0, 1, 2, 3, 4]
    assert [c.point[0] for c in _ranked(candidates[1::2], 2, on_host=True)] == [1, 3]


def test_cpus_prefer_rounded_factors_among_candidates_without_a_score(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions = ["float32", "bfloat16", "float32", "bfloat16"]
    drawn = [
        Candidate(cast("Sketch", SimpleNamespace(precision=name)), (n,), math.nan, "random")
        for n, name in enumerate(precisions)
    ]
    monkeypatch.setattr("felixlike.search.predicted.draw", lambda *_, **__: drawn)
    sampled = Predicted(CostModel()).propose(space, Observations(), 4, np.random.default_rng(0))
    assert [c.point[0] for c in sampled] == [1, 3, 0, 2]


@pytest.mark.parametrize(("parallel", "times"), [(1, 4.0), (2, 2.0), (4, 1.0), (5, 8 / 5), (6, 4 / 3), (400, 1.0)])
def test_idle_cores_slow_a_schedule_down(parallel: float, times: float) -> None:
    assert sharing(_features(parallel, 1e9), 4) == pytest.approx(times, rel=1e-3)


def test_short_loops_are_faster_on_one_core() -> None:
    assert sharing(_features(1, 1e3), 2) < sharing(_features(2, 1e3), 2)
    assert sharing(_features(1, 1e6), 2) > sharing(_features(2, 1e6), 2)
