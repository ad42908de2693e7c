"""optimize, load and extract_tasks as users call them, on small models with small budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import workloads
from torch import nn

import felixlike as fx
from benchmarks.loopback import Loopback
from felixlike.errors import (
    InputMismatch,
    InvalidBudget,
    InvalidModel,
    InvalidOption,
    InvalidShape,
    StoreError,
    UnknownTarget,
)
from felixlike.hardware import host_device


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 12), nn.Softmax(-1)).eval()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(4, 32)


@pytest.fixture(scope="module")
def tuned(model: nn.Module, x: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> fx.Optimized:
    store = tmp_path_factory.mktemp("store") / "runs.sqlite"
    return fx.optimize(model, x, trials=24, space="all", store=store, progress=False)


def test_the_answer_is_the_models(tuned: fx.Optimized, model: nn.Module, x: torch.Tensor) -> None:
    y = tuned(x)
    assert isinstance(y, torch.Tensor)
    with torch.no_grad():
        torch.testing.assert_close(y.double(), model.double()(x.double()), rtol=1e-4, atol=1e-5)
    model.float()


def test_servers_measure_instead(loopback: Loopback, model: nn.Module, x: torch.Tensor) -> None:
    measured = fx.optimize(model, x, trials=6, space="all", tracker=loopback.where, key="cpu", progress=False)
    assert measured.report.trials == 6
    assert not any(task.failures for task in measured.report.tasks)
    assert measured.report.device == host_device().name
    with torch.no_grad():
        torch.testing.assert_close(measured(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("given", "missing"), [("tracker", "key"), ("key", "tracker")])
def test_a_tracker_goes_with_a_key(model: nn.Module, x: torch.Tensor, given: str, missing: str) -> None:
    with pytest.raises(InvalidOption, match=rf"there is a {given} but no {missing}\. give both or neither"):
        fx.optimize(model, x, progress=False, **{given: "127.0.0.1:9190"})  # type: ignore[arg-type]


def test_the_report_names_every_task(tuned: fx.Optimized) -> None:
    report = tuned.report
    assert [t.name for t in report.tasks]
    assert report.trials == 24 == sum(t.trials for t in report.tasks)
    assert report.error <= 1e-4
    assert report.reference == "float64"
    assert report.stopped == "the trials were used up"
    for task in report.tasks:
        assert task.how in ("measured", "unmeasured")
        assert task.sketch is not None
        assert task.error is not None
        assert task.error <= 1e-4
        assert (task.seconds > 0) == (task.trials > 0)


def test_saved_models_come_back_with_their_report(tuned: fx.Optimized, x: torch.Tensor, tmp_path: Path) -> None:
    tuned.save(tmp_path / "model.flx")
    again = fx.load(tmp_path / "model.flx")
    torch.testing.assert_close(again(x), tuned(x))
    assert str(again.report) == str(tuned.report)


def test_wrong_inputs_are_refused(tuned: fx.Optimized, x: torch.Tensor) -> None:
    with pytest.raises(InputMismatch, match=r"has shape \(5, 32\)"):
        tuned(torch.randn(5, 32))
    with pytest.raises(InputMismatch, match=r"torch.float64, compiled for torch.float32"):
        tuned(x.double())
    with pytest.raises(InputMismatch, match="2 inputs are given, 1 needed"):
        tuned(x, x)


def test_no_budget_at_all_still_gives_checked_schedules(model: nn.Module, x: torch.Tensor) -> None:
    tuned = fx.optimize(model, x, trials=0, progress=False)
    assert {t.how for t in tuned.report.tasks} == {"unmeasured"}
    assert tuned.report.error <= 1e-4
    assert "Checked but not measured" in str(tuned.report)


def test_a_primfunc_is_a_function_of_its_inputs() -> None:
    a, b = torch.randn(12, 10), torch.randn(10, 18)
    tuned = fx.optimize(workloads.matmul(12, 10, 18), rounds=1, progress=False)
    torch.testing.assert_close(tuned(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_tasks_are_extracted_heaviest_first(model: nn.Module, x: torch.Tensor) -> None:
    tasks = fx.extract_tasks(model, x)
    work = [t.weight * t.flops for t in tasks]
    assert work == sorted(work, reverse=True)
    assert len({t.key for t in tasks}) == len(tasks) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"rounds": -3}, InvalidBudget, "rounds is -3"),
        ({"seconds": -1.0}, InvalidBudget, "seconds is -1.0"),
        ({"target": "abacus"}, UnknownTarget, "'abacus' is not a known target"),
        ({"target": "cuda"}, UnknownTarget, "can be looked at, but not tuned"),
        ({"strategy": "luck"}, InvalidOption, "'luck' is not a strategy"),
        ({"seed": -1}, InvalidOption, "seed is -1"),
        ({"progress": 3}, InvalidOption, "progress is 3"),
        ({"shapes": (4, 0)}, InvalidShape, "0"),
        ({"shapes": None}, InvalidShape, "the shapes of the model's inputs are not known"),
        ({"model": 7}, InvalidModel, "a int is not a model"),
        ({"store": "/nowhere/at/all.sqlite"}, StoreError, "there is no directory"),
    ],
)
def test_bad_input_is_named_before_any_work(
    options: dict[str, Any], error: type[Exception], words: str, model: nn.Module, x: torch.Tensor
) -> None:
    given: dict[str, Any] = {"model": model, "shapes": x, "progress": False, "rounds": 1} | options
    with pytest.raises(error, match=words):
        fx.optimize(given.pop("model"), given.pop("shapes"), **given)
