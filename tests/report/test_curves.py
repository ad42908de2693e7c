"""Curves of the best latency so far, compared with values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from felixlike.report.curves import (
    Interval,
    Reached,
    Series,
    Step,
    band,
    best_known,
    combined,
    interval,
    quality,
    ranks_of_interval,
    times_to,
)

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


def test_the_latency_of_a_network_is_the_weighted_sum_of_its_tasks() -> None:
    series = combined([1.0, 2.0, 3.0, 4.0], [0, 1, 0, 1], [5e-6, math.inf, 3e-6, 4e-6], [2.0, 1.0])
    assert series.latency[:3].tolist() == [math.inf] * 3
    assert series.best == pytest.approx(1e-5)
    assert combined([1.0], [0], [5e-6], [1.0, 0.0]).best == 5e-6  # a task that counts nothing is not waited for


@pytest.mark.parametrize(
    ("count", "ranks"), [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (9, (1, 7)), (15, (3, 11)), (20, (5, 14))]
)
def test_the_interval_of_a_median_has_the_ranks_of_the_tables(count: int, ranks: tuple[int, int]) -> None:
    assert ranks_of_interval(count) == ranks


def test_the_interval_of_a_median_covers_it() -> None:
    rng = np.random.default_rng(0)
    inside = [(one := interval(rng.exponential(size=15).tolist())).low <= math.log(2) <= one.high for _ in range(4000)]
    assert 0.95 <= np.mean(inside) <= 0.98
    assert interval([1.0, math.inf]) == Interval(math.inf, 1.0, math.inf)
    assert interval([2.0, 4.0]).median == 3.0


def test_a_band_holds_the_median_of_the_runs() -> None:
    runs = [Series([1.0, 3.0], [4e-6, 2e-6 + i * 1e-7]) for i in range(3)]
    assert [one.median for one in band(runs, [0.0, 1.0, 3.0])] == [math.inf, 4e-6, 2.1e-6]
    assert band(runs, [2.0], seconds=False)[0] == Interval(2.1e-6, 2e-6, 2.2e-6)
