"""`Budget` has limits, defaults and errors for invalid values."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from felixlike.errors import InvalidBudget
from felixlike.tuning import Budget
from felixlike.tuning.budget import Effort


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"rounds": -1}, "expected rounds to be .*, got -1"),
        ({"trials": 2.5}, "expected trials to be .*, got 2.5"),
        ({"seconds": -0.1}, "expected seconds to be .*, got -0.1"),
        ({"seconds": math.nan}, "expected seconds to be .*, got nan"),
        ({"rounds": True}, "expected rounds to be .*, got True"),
        ({"trials": "many"}, "expected trials to be .*, got 'many'"),
    ],
)
def test_bad_limits_are_refused(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidBudget, match=words):
        Budget(**limits)


def test_the_limit_reached_first_ends_the_run() -> None:
    budget = Budget(rounds=2, trials=12)
    assert budget.next_batch() == 8
    budget.spent_rounds, budget.spent_trials = 1, 8
    assert budget.next_batch() == 4
    budget.spent_rounds = 2
    assert budget.next_batch() == 0
    assert Budget(rounds=5, trials=0).next_batch() == 0
    assert Budget(seconds=10, started=time.monotonic() - 11).next_batch() == 0
    assert Budget(seconds=10).next_batch() == 8


def test_spending_of_earlier_runs_counts() -> None:
    budget = Budget(rounds=5, trials=46, seconds=100.0)
    budget.find(rounds=2, trials=30)
    budget.find(trials=10, seconds=40.0)
    assert budget.next_batch() == 6
    assert (budget.found_rounds, budget.found_trials, budget.spent_rounds) == (2, 40, 2)
    assert budget.seconds_left() == pytest.approx(60.0, abs=5.0)
    budget.find(seconds=60.0)
    assert budget.next_batch() == 0


def test_the_default_is_eight_rounds_a_task() -> None:
    assert Budget().with_default(7).rounds == 56
    assert [Budget().with_default(7, effort).least_gain > 0 for effort in Effort] == [False, False, True, False]
    assert Budget(rounds=3).with_default(7).least_gain == 0
    assert [Budget().with_default(7, effort).rounds for effort in Effort] == [0, 14, 56, 224]
    assert Budget(trials=3).with_default(7, Effort.INSTANT).rounds is None
    assert Budget(rounds=0).with_default(7).rounds == 0
