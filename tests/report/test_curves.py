"""Curves of the best latency so far, compared with values computed by hand."""

from __future__ import annotations

import math

import pytest

from felixlike.report.curves import Reached, Series, Step, best_known, quality, times_to

SERIES = Series([1.0, 2.0, 4.0, 5.0, 9.0], [math.inf, 4.0, math.nan, 2.0, 3.0])


def test_the_best_so_far_ignores_failures() -> None:
    assert SERIES.best_so_far.tolist() == [math.inf, 4.0, 4.0, 2.0, 2.0]
    assert (SERIES.best, SERIES.right, SERIES.seconds, len(SERIES)) == (2.0, 3, 9.0, 5)
    assert SERIES.steps() == (Step(2, 2.0, 4.0), Step(4, 5.0, 2.0))


def test_the_best_after_candidates_and_after_seconds() -> None:
    assert [SERIES.after(count) for count in (0, 1, 2, 4, 100)] == [math.inf, math.inf, 4.0, 2.0, 2.0]
    assert [SERIES.after_seconds(at) for at in (0.5, 2.0, 4.9, 5.0)] == [math.inf, 4.0, 4.0, 2.0]


def test_times_to_fractions_of_the_best_known() -> None:
    assert times_to(SERIES, 2.0, (0.5, 0.99)) == ((0.5, Reached(2, 2.0)), (0.99, Reached(4, 5.0)))
    assert times_to(SERIES, 1.0, (0.5, 0.6)) == ((0.5, Reached(4, 5.0)), (0.6, None))
    assert times_to(SERIES, 0.1 + 0.2, (1.0,)) == ((1.0, None),)
    assert times_to(Series([1.0], [0.3]), 0.3, (0.99, 1.0))[1][1] == Reached(1, 1.0)


def test_series_without_measurements_or_without_successes() -> None:
    empty, wrong = Series([], []), Series([1.0, 2.0], [math.inf, math.inf])
    assert (empty.best, empty.seconds, empty.after(3), empty.steps()) == (math.inf, 0.0, math.inf, ())
    assert (wrong.best, wrong.right, wrong.reached(1.0), wrong.steps()) == (math.inf, 0, None, ())
    assert best_known([empty, wrong]) == best_known([]) == math.inf
    assert best_known([empty, SERIES]) == 2.0
    assert [quality(latency, 2.0) for latency in (2.0, 4.0, math.inf)] == [1.0, 0.5, 0.0]


def test_different_numbers_of_times_and_latencies_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 times and 1 latencies"):
        Series([1.0, 2.0], [1.0])
