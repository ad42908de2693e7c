"""Curves of the best so far, by hand."""

from __future__ import annotations

import math

import pytest

from felixlike.report.curves import Reached, Series, Step, best_known, quality, times_to

FOUND = Series([1.0, 2.0, 4.0, 5.0, 9.0], [math.inf, 4.0, math.nan, 2.0, 3.0])


def test_the_best_so_far_passes_over_failures() -> None:
    assert FOUND.best_so_far.tolist() == [math.inf, 4.0, 4.0, 2.0, 2.0]
    assert (FOUND.best, FOUND.right, FOUND.seconds, len(FOUND)) == (2.0, 3, 9.0, 5)
    assert FOUND.steps() == (Step(2, 2.0, 4.0), Step(4, 5.0, 2.0))


def test_what_is_known_after_candidates_and_after_seconds() -> None:
    assert [FOUND.after(count) for count in (0, 1, 2, 4, 100)] == [math.inf, math.inf, 4.0, 2.0, 2.0]
    assert [FOUND.after_seconds(at) for at in (0.5, 2.0, 4.9, 5.0)] == [math.inf, 4.0, 4.0, 2.0]


def test_times_to_shares_of_the_best_known() -> None:
    assert times_to(FOUND, 2.0, (0.5, 0.99)) == ((0.5, Reached(2, 2.0)), (0.99, Reached(4, 5.0)))
    assert times_to(FOUND, 1.0, (0.5, 0.6)) == ((0.5, Reached(4, 5.0)), (0.6, None))
    assert times_to(FOUND, 0.1 + 0.2, (1.0,)) == ((1.0, None),)
    assert times_to(Series([1.0], [0.3]), 0.3, (0.99, 1.0))[1][1] == Reached(1, 1.0)


def test_nothing_measured_and_nothing_right() -> None:
    nothing, wrong = Series([], []), Series([1.0, 2.0], [math.inf, math.inf])
    assert (nothing.best, nothing.seconds, nothing.after(3), nothing.steps()) == (math.inf, 0.0, math.inf, ())
    assert (wrong.best, wrong.right, wrong.reached(1.0), wrong.steps()) == (math.inf, 0, None, ())
    assert best_known([nothing, wrong]) == best_known([]) == math.inf
    assert best_known([nothing, FOUND]) == 2.0
    assert [quality(latency, 2.0) for latency in (2.0, 4.0, math.inf)] == [1.0, 0.5, 0.0]


def test_times_and_latencies_belong_together() -> None:
    with pytest.raises(ValueError, match="2 times for 1 latencies"):
        Series([1.0, 2.0], [1.0])
