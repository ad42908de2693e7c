"""`Spent` counts every second of a run once; `History` knows what was predicted first."""

from __future__ import annotations

import math
import time

import pytest

from felixlike.measure import Measurement, Status
from felixlike.tuning import History, Spent

OK = Status.OK


def test_inner_steps_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 10.0, 10.0, 12.0])
    monkeypatch.setattr(time, "monotonic", clock.__next__)
    spent = Spent()
    with spent.on("outer"), spent.on("inner"):
        pass
    with pytest.raises(ValueError, match="lost"), spent.on("inner"):
        raise ValueError("lost")
    spent.add("before", 3.0)
    assert spent.seconds == {"inner": 5.0, "outer": 7.0, "before": 3.0}


def test_the_predicted_schedule_is_the_best_scored_of_the_first_round() -> None:
    history = History()
    for score, seconds, status in [(1.0, 4e-3, OK), (3.0, 1e-3, Status.WRONG), (2.0, 3e-3, OK), (9.0, 2e-3, OK)]:
        history.add(0.0, score, Measurement(status, seconds))
    assert math.isnan(history.predicted())  # no round has ended
    history.first = 3
    assert history.predicted() == 3e-3
    history.known = 1e-3  # the cost model has learned from earlier runs
    assert math.isnan(history.predicted())


def test_scores_that_are_unknown_predict_nothing() -> None:
    history = History()
    history.add(0.0, math.nan, Measurement(OK, 1e-3))
    history.first = 1
    assert math.isnan(history.predicted())
