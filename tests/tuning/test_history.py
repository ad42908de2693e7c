"""`History` knows what was predicted first."""

from __future__ import annotations

import math

from felixlike.measure import Measurement, Status
from felixlike.tuning import History

OK = Status.OK


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
