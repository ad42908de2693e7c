"""Tests for options, budgets and record stores."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike.errors import FelixlikeError, InvalidBudget, InvalidOption, InvalidWeights, StoreError, UnknownTarget
from felixlike.hardware import host_target
from felixlike.report.tables import _row
from usage.ways import Refused, answers_alike

GOOD: dict[str, dict[str, Any]] = {
    "numpy's integers": {"rounds": np.int64(0), "seed": np.uint8(3)},
    "a tensor for a number": {"trials": torch.tensor(0)},
    "no time": {"seconds": 0},
    "a decimal": {"seconds": Decimal(0)},
    "all limits": {"rounds": 0, "trials": 0, "seconds": 0.0},
    "a huge seed": {"rounds": 0, "seed": 2**63 - 1},
    "the target as an object": {"rounds": 0, "target": host_target()},
    "llvm": {"rounds": 0, "target": "llvm"},
    "random search": {"rounds": 0, "strategy": "random"},
    "a store in memory": {"rounds": 0, "store": ":memory:"},
    "plain progress": {"rounds": 0, "progress": "plain"},
}


@pytest.mark.parametrize("way", GOOD)
def test_valid_options_are_accepted(way: str, model: nn.Module, x: torch.Tensor) -> None:
    answers_alike(fx.optimize(model, (x,), **{"progress": False, **GOOD[way]}), model, x)


BAD: dict[str, tuple[dict[str, Any], type[FelixlikeError], str]] = {
    "negative rounds": ({"rounds": -1}, InvalidBudget, "expected rounds to be .*, got -1"),
    "half a round": ({"rounds": 0.5}, InvalidBudget, "expected rounds to be .*, got 0.5"),
    "rounds as text": ({"rounds": "10"}, InvalidBudget, "expected rounds to be .*, got '10'"),
    "rounds as a flag": ({"rounds": True}, InvalidBudget, "expected rounds to be .*, got True"),
    "endless trials": ({"trials": math.inf}, InvalidBudget, "expected trials to be .*, got inf"),
    "no number": ({"seconds": math.nan}, InvalidBudget, "expected seconds to be .*, got nan"),
    "time as a duration": (
        {"seconds": datetime.timedelta(minutes=1)},
        InvalidBudget,
        "expected seconds to be .*, got datetime",
    ),
    "a seed too large": ({"seed": 2**70}, InvalidOption, "expected seed to be .*, got 1180591620717411303424"),
    "a seed that is none": ({"seed": None}, InvalidOption, "expected seed to be .*, got None"),
    "an unknown target": ({"target": "tpu"}, UnknownTarget, "'tpu'"),
    "a target of another type": ({"target": 3}, UnknownTarget, "3"),
    "a GPU that is not there": ({"target": "cuda"}, UnknownTarget, "no GPU was found|CUDA"),
    "an unknown strategy": ({"strategy": "simplex"}, InvalidOption, "'simplex' is not a strategy"),
    "an unknown space": ({"space": "large"}, InvalidOption, "'large' is not a design space"),
    "a number as a store": ({"store": 5}, StoreError, "5 is not a path"),
    "a store in a folder that is not there": ({"store": "nowhere/runs.sqlite"}, StoreError, "no directory"),
    "a folder as a store": ({"store": "."}, StoreError, "."),
    "weights that are not there": ({"weights": "nowhere.pt"}, InvalidWeights, "nowhere.pt"),
    "a tracker without a key": ({"tracker": "127.0.0.1:9190"}, InvalidOption, "`tracker` is set but `key` is not"),
    "a tracker without a port": ({"tracker": "localhost", "key": "k"}, InvalidOption, "HOST:PORT"),
    "progress as a number": ({"progress": 2}, InvalidOption, "progress: .* got 2"),
}


@pytest.mark.parametrize("way", BAD)
def test_invalid_options_are_refused(way: str, model: nn.Module, x: torch.Tensor) -> None:
    options, kind, words = BAD[way]
    with Refused(kind, words):
        fx.optimize(model, (x,), **{"progress": False, **options})


def test_a_file_that_is_not_a_store_is_refused_and_unchanged(model: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    (tmp_path / "runs.sqlite").write_text("date,loss\n1,2\n" * 100)
    with Refused(StoreError, "runs.sqlite"):
        fx.optimize(model, (x,), 0, store=tmp_path / "runs.sqlite", progress=False)
    assert (tmp_path / "runs.sqlite").read_text().startswith("date,loss")


def test_records_of_a_store_are_reused(model: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    """Repeating a call measures nothing, and a larger limit measures the difference."""
    store = str(tmp_path / "runs.sqlite")
    first = fx.optimize(model, (x,), trials=3, space="all", store=store, progress=False)
    again = fx.optimize(model, (x,), trials=3, space="all", store=store, progress=False)
    more = fx.optimize(model, (x,), trials=4, space="all", store=store, progress=False)
    assert [optimized.report.trials for optimized in (first, again, more)] == [3, 0, 1]
    assert [optimized.report.recalled for optimized in (first, again, more)] == [0, 3, 3]
    shown = [sum(int(row[6]) for row in map(_row, optimized.report.tasks)) for optimized in (first, again, more)]
    assert shown == [3, 3, 4]  # the table counts measurements of all runs


def test_nothing_is_printed_without_progress(
    model: nn.Module, x: torch.Tensor, capfd: pytest.CaptureFixture[str]
) -> None:
    fx.optimize(model, (x,), trials=1, progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["shape", "round", "budget", "n_trials"])
def test_unknown_option_names_are_refused(name: str, model: nn.Module, x: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        fx.optimize(model, (x,), 0, **{name: 3})  # type: ignore[arg-type]
