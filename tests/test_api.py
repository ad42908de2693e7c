"""Test `optimize`, `load` and `extract_tasks` with small models and small budgets."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import workloads
from support.loopback import Loopback
from torch import nn

import felixlike as fx
from felixlike import records
from felixlike.cli import main
from felixlike.dynamic.optimize import optimize_dynamic
from felixlike.errors import (
    InputMismatch,
    InvalidBudget,
    InvalidModel,
    InvalidOption,
    InvalidShape,
    InvalidWeights,
    StoreError,
    UnknownTarget,
)
from felixlike.hardware import host_device, imitated_target, resolve_target, with_precision
from felixlike.measure.local.builder import Builder
from felixlike.tuning.config import RunConfig


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


def test_outputs_equal_the_models_outputs(tuned: fx.Optimized, model: nn.Module, x: torch.Tensor) -> None:
    y = tuned(x)
    assert isinstance(y, torch.Tensor)
    with torch.no_grad():
        torch.testing.assert_close(y.double(), model.double()(x.double()), rtol=1e-4, atol=1e-5)
    model.float()


def test_the_report_has_its_history(tuned: fx.Optimized, tmp_path: Path) -> None:
    report = tuned.report
    steps = (
        "importing",
        "proposing",
        "measuring",
        "building",
        "checking",
        "timing candidates",
        "compiling",
        "verifying",
    )
    assert all(report.spent[step] > 0 for step in steps)
    for task in report.tasks:
        # The chosen schedule is the best one, or another of the best few that was faster in the model.
        assert task.story.steps[-1].latency <= task.seconds * (1 + 1e-3)
        assert task.story.steps[-1].seconds <= report.seconds
        assert task.story.building > 0
        assert task.story.untuned
        assert bool(task.story.chosen) == (task.how != "untuned")
    tuned.save(tmp_path / "m.flx")
    assert len(str(report.to_json())) < 20_000 * len(report.tasks)
    assert str(fx.load(tmp_path / "m.flx").report.to_json()) == str(report.to_json())  # nan is unequal to itself
    report.save_html(tmp_path / "own.html")
    assert main(["show", str(tmp_path / "m.flx"), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == (tmp_path / "own.html").read_text()


def test_the_profile_of_a_run_adds_up(tuned: fx.Optimized) -> None:
    report = tuned.report
    assert sum(report.spent.values()) == pytest.approx(report.total_seconds, rel=0.02)
    assert report.spent["else"] < 0.2 * report.total_seconds  # loading modules in this process may be there
    of_tasks = [task.spent for task in report.tasks]
    assert all(task["timing candidates"] > 0 for task in of_tasks)
    for step in ("proposing", "building", "timing candidates"):
        assert sum(task.get(step, 0.0) for task in of_tasks) <= report.spent[step] + 0.01
    assert set(report.activity.rows) == {"this process", "building", "checking", "timing candidates"}
    timing = sum(report.activity.rows["timing candidates"])
    assert 0.9 * report.spent["timing candidates"] <= timing <= 1.1 * report.spent["timing candidates"] + 0.1
    assert 0 <= report.activity.idle < 1
    assert "spent on" in str(report)
    assert "had no work of this run for" in str(report)


def test_candidates_are_measured_on_servers(loopback: Loopback, model: nn.Module, x: torch.Tensor) -> None:
    options: dict[str, Any] = {"strategy": "random", "space": "all", "progress": False}
    measured = fx.optimize(model, x, trials=6, tracker=loopback.where, key="cpu", **options)
    assert measured.report.trials == 6
    assert not any(task.failures for task in measured.report.tasks)
    assert measured.report.device == host_device().name
    with torch.no_grad():
        torch.testing.assert_close(measured(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("given", "missing"), [("tracker", "key"), ("key", "tracker")])
def test_a_tracker_without_a_key_raises(model: nn.Module, x: torch.Tensor, given: str, missing: str) -> None:
    with pytest.raises(InvalidOption, match=rf"^{missing}: `{given}` is set"):
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


def test_saved_models_are_loaded_with_their_report(tuned: fx.Optimized, x: torch.Tensor, tmp_path: Path) -> None:
    tuned.save(tmp_path / "model.flx")
    loaded = fx.load(tmp_path / "model.flx")
    torch.testing.assert_close(loaded(x), tuned(x))
    assert str(loaded.report) == str(tuned.report)


def test_invalid_inputs_raise(tuned: fx.Optimized, x: torch.Tensor) -> None:
    with pytest.raises(InputMismatch, match=r"has shape \(5, 32\)"):
        tuned(torch.randn(5, 32))
    with pytest.raises(InputMismatch, match=r"torch.float64, compiled for torch.float32"):
        tuned(x.double())
    with pytest.raises(InputMismatch, match="1 input, got 2"):
        tuned(x, x)


def test_schedules_are_verified_without_a_budget(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best predicted candidates are built and verified once. A second run reuses the selection."""
    begun, begin = list[Any](), Builder.begin

    def counted(workshop: Builder, index: int, candidate: Any, memory: int, **extra: Any) -> Any:
        begun.append(candidate)
        return begin(workshop, index, candidate, memory, **extra)

    monkeypatch.setattr(Builder, "begin", counted)
    monkeypatch.setattr("felixlike.search.space.relax", None)
    tuned = fx.optimize(model, x, trials=0, seed=5, progress=False)
    assert {t.how for t in tuned.report.tasks} == {"unmeasured"}
    assert tuned.report.error <= 1e-4
    assert "Predicted and checked, not measured" in str(tuned.report)
    assert len(begun) == len(tuned.report.tasks)
    begun.clear()
    monkeypatch.setattr("felixlike.search.space.sketches", None)
    again = fx.optimize(model, x, trials=0, seed=5, progress=False)
    assert not begun
    tasks = [[replace(task, spent={}) for task in report.tasks] for report in (again.report, tuned.report)]
    assert repr(tasks[0]) == repr(tasks[1])  # NaN differs from itself
    assert again.report.error <= 1e-4


def test_a_primfunc_is_called_with_its_inputs() -> None:
    a, b = torch.randn(12, 10), torch.randn(10, 18)
    tuned = fx.optimize(workloads.matmul(12, 10, 18), rounds=1, progress=False)
    torch.testing.assert_close(tuned(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_a_search_on_a_simulated_cpu_compiles_for_the_host(tmp_path: Path) -> None:
    a, b = torch.randn(12, 10), torch.randn(10, 18)
    store = tmp_path / "runs.sqlite"
    tuned = fx.optimize(
        workloads.matmul(12, 10, 18), target="simulated:cpu", trials=6, store=store, space="all", progress=False
    )
    torch.testing.assert_close(tuned(a, b), a @ b, rtol=1e-4, atol=1e-4)
    (task,) = tuned.report.tasks
    assert (task.how, task.trials) == ("measured", 6)
    assert task.error is not None
    assert task.error < 1e-5
    assert tuned.report.device == "simulated AMD EPYC (Zen 5, one core)"
    assert "on simulated AMD EPYC" in str(tuned.report)
    with records.open(store, read_only=True) as opened:
        assert {record.device for record in opened.measurements()} == {tuned.report.device}
    tuned.save(tmp_path / "model.flx")
    torch.testing.assert_close(fx.load(tmp_path / "model.flx")(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_tasks_are_extracted_heaviest_first(model: nn.Module, x: torch.Tensor) -> None:
    tasks = fx.extract_tasks(model, x)
    work = [t.weight * t.flops for t in tasks]
    assert work == sorted(work, reverse=True)
    assert len({t.key for t in tasks}) == len(tasks) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"rounds": -3}, InvalidBudget, "expected rounds to be .*, got -3"),
        ({"seconds": -1.0}, InvalidBudget, "expected seconds to be .*, got -1.0"),
        ({"target": "abacus"}, UnknownTarget, "'abacus' is not a known target"),
        ({"target": "cuda"}, UnknownTarget, "no GPU was found"),
        ({"target": "simulated:h100"}, UnknownTarget, "compiled for simulated NVIDIA H100"),
        (
            {"target": "simulated:cpu", "shapes": (fx.Dim("n", range(1, 9)), 64)},
            UnknownTarget,
            "dynamic shapes: cannot measure on simulated AMD EPYC",
        ),
        (
            {"target": "simulated:cpu", "tracker": "127.0.0.1:1", "key": "cpu"},
            UnknownTarget,
            r"tracker: cannot measure on simulated AMD EPYC \(Zen 5, one core\)",
        ),
        (
            {"precision": "tf32"},
            InvalidOption,
            r"precision: tf32 needs tensor cores, but a CPU has none\. use",
        ),
        (
            {"precision": "half"},
            InvalidOption,
            "'half' is not a precision. use one of float32, tf32, float16, bfloat16",
        ),
        (
            {"target": "simulated:h100", "precision": "tf32"},
            InvalidOption,
            "simulated devices were measured in float32",
        ),
        ({"target": "cuda", "precision": "tf32"}, UnknownTarget, "no GPU was found"),
        ({"strategy": "luck"}, InvalidOption, "'luck' is not a strategy"),
        ({"strategy": "Gradient"}, InvalidOption, r"use one of gradient, evol.* .did you mean 'gradient'"),
        ({"strategy": ["gradient"]}, InvalidOption, r"\['gradient'\] is not a strategy"),
        ({"effort": "instnat"}, InvalidOption, r"effort.*'instnat'.*'instant'"),
        ({"space": "bset"}, InvalidOption, r"'bset' is not a design space.*\(did you mean 'best'\?\)"),
        ({"seed": -1}, InvalidOption, "seed .*-1"),
        ({"seed": 2**70}, InvalidOption, "seed .*1180591620717411303424"),
        ({"seed": True}, InvalidOption, "seed .*True"),
        ({"rounds": 1.0}, InvalidBudget, r"rounds .*1\.0"),
        ({"trials": "3"}, InvalidBudget, "trials .*'3'"),
        ({"seconds": datetime.timedelta(1)}, InvalidBudget, r"seconds .*datetime.timedelta\(days=1\)"),
        ({"progress": 3}, InvalidOption, "progress: .* got 3"),
        ({"store": 5}, StoreError, "store: 5 is not a path"),
        ({"store": b"runs.sqlite"}, StoreError, "is not a path"),
        ({"weights": 5}, InvalidWeights, "weights: 5 is not a path"),
        ({"tracker": 5, "key": "cpu"}, InvalidOption, "tracker: expected HOST:PORT, got 5"),
        ({"tracker": "host:port:x", "key": "cpu"}, InvalidOption, "expected HOST:PORT, got 'host:port:x'"),
        ({"tracker": "127.0.0.1:1", "key": 5}, InvalidOption, "expected key to be a nonempty string, got 5"),
        ({"target": "sm80"}, UnknownTarget, "did you mean 'sm_80'"),
        ({"shapes": (4, 0)}, InvalidShape, "0"),
        ({"shapes": None}, InvalidShape, "the shapes of the model's inputs are not known"),
        ({"model": 7}, InvalidModel, "an int is not a model"),
        ({"store": "/nowhere/at/all.sqlite"}, StoreError, "there is no directory"),
    ],
)
def test_invalid_options_raise_before_any_work(
    options: dict[str, Any], error: type[Exception], words: str, model: nn.Module, x: torch.Tensor
) -> None:
    arguments: dict[str, Any] = {"model": model, "shapes": x, "progress": False, "rounds": 1} | options
    with pytest.raises(error, match=words):
        fx.optimize(arguments.pop("model"), arguments.pop("shapes"), **arguments)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_dynamic_sizes_on_gpus_refuse_reduced_precisions(precision: str, model: nn.Module) -> None:
    """Without a GPU the error about the missing device comes first."""
    config = RunConfig(with_precision(resolve_target("sm_90"), precision), "a device")
    with pytest.raises(InvalidOption, match=f"on GPUs do not support precision {precision}"):
        optimize_dynamic(model, (fx.Dim("n", range(1, 9)), 64), None, config)


def test_weights_in_bfloat16(tmp_path: Path) -> None:
    """A layer that takes the time of loading its weights rounds them; a small one does not."""
    torch.manual_seed(0)
    small, large, x = nn.Linear(64, 1024), nn.Linear(1024, 1024), torch.randn(1, 64)
    model, target = nn.Sequential(small, nn.ReLU(), large).eval(), imitated_target("zen3")
    tuned = fx.optimize(model, x, target=target, precision="bfloat16", effort="instant", progress=False)
    precisions = {task.precision: task for task in tuned.report.tasks}
    assert set(precisions) == {"bfloat16", "float32"}
    assert precisions["float32"].flops < precisions["bfloat16"].flops
    assert f"Products: bfloat16 weights in {precisions['bfloat16'].title}; float32" in str(tuned.report)
    assert 1e-4 < tuned.report.error < 1e-2
    rounded = nn.functional.linear(small(x).relu(), large.weight.bfloat16().float(), large.bias)
    torch.testing.assert_close(tuned(x), rounded.detach(), rtol=1e-4, atol=1e-5)
    tuned.save(tmp_path / "model.flx")
    assert torch.equal(fx.load(tmp_path / "model.flx")(x), tuned(x))


def test_weights_without_a_number_in_bfloat16_have_float32_schedules() -> None:
    """Masks that are added to products do not count."""

    class Masked(nn.Module):
        mask: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(192, 256), nn.Linear(256, 256)
            self.register_buffer("mask", torch.full((256,), torch.finfo(torch.float32).min))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.maximum(self.last(self.first(x * 1e-20).tanh()), self.mask)

    torch.manual_seed(0)
    model, x = Masked().eval(), torch.randn(32, 192)
    with torch.no_grad():
        model.first.weight[3, 5] = 3.4e38
        options: dict[str, Any] = {"target": imitated_target("zen5"), "precision": "bfloat16", "effort": "instant"}
        tuned = fx.optimize(model, x, progress=False, **options)
        assert (tuned(x) - model(x)).abs().max() < 2e-2 * model(x).abs().max()
    (rounded,) = [task for task in tuned.report.tasks if task.precision == "bfloat16"]
    assert "last" in rounded.title
    assert {task.how for task in tuned.report.tasks} == {"unmeasured"}


def test_products_of_bfloat16_pairs(tmp_path: Path) -> None:
    """Both factors are rounded where that is faster. Other processors imitate one with the instruction."""
    torch.manual_seed(0)
    first, last, x = nn.Linear(192, 256), nn.Linear(256, 4), torch.randn(32, 192)
    model, target = nn.Sequential(first, nn.LayerNorm(256), last).eval(), imitated_target("zen5")
    tuned = fx.optimize(model, x, target=target, precision="bfloat16", effort="instant", progress=False)
    (rounded,) = [task for task in tuned.report.tasks if task.precision == "bfloat16"]
    assert f"Products: bfloat16 factors in {rounded.title}; float32 elsewhere" in str(tuned.report)
    assert 1e-4 < tuned.report.error < 1e-2
    product = nn.functional.linear(x.bfloat16().float(), first.weight.bfloat16().float(), first.bias)
    torch.testing.assert_close(tuned(x), last(model[1](product)).detach(), rtol=1e-4, atol=1e-4)
    tuned.save(tmp_path / "model.flx")
    assert torch.equal(fx.load(tmp_path / "model.flx")(x), tuned(x))


def test_numpy_numbers_are_accepted_as_options(model: nn.Module, x: torch.Tensor) -> None:
    tuned = fx.optimize(model, x, np.int64(0), seed=np.int32(3), seconds=np.float32(60), progress=False)  # type: ignore[arg-type]
    assert tuned.report.seed == 3
    assert type(tuned.report.to_json()["seed"]) is int


def test_nothing_is_printed_without_progress(x: torch.Tensor, capfd: pytest.CaptureFixture[str]) -> None:
    """TVM prints nothing to file descriptors either, although pooling requests rules that are not registered."""
    image = torch.randn(1, 2, 8, 8)
    fx.optimize(nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2)), image, trials=1, space="all", progress=False)
    assert capfd.readouterr() == ("", "")
