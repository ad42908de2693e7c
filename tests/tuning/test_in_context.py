"""The last choice among a task's best schedules is by time in the model, checked, remembered, and never slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import felixlike as fx
from felixlike.frontend import import_model
from felixlike.measure import Measurement, Status
from felixlike.runtime import compile_model
from felixlike.runtime.kernel_times import kernel_times
from felixlike.search import Candidate
from felixlike.tuning import in_context
from felixlike.tuning.choice import at_hand
from felixlike.tuning.in_context import affordable, seconds_needed, seconds_reserved
from felixlike.tuning.state import TaskState

TRIALS = 12


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.Softmax(-1)).eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.linspace(-1, 1, 32 * 64).reshape(32, 64)


@pytest.fixture(scope="module")
def store(model: nn.Module, x: Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several schedules a task, and no choice in the model remembered."""
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_context.InContext, "undecided", False)
        fx.optimize(model, x, trials=TRIALS, strategy="random", store=path, progress=False)
    return path


@pytest.fixture(autouse=True)
def near(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take schedules that are far slower alone too, so that there are some, and any gain of a call."""
    monkeypatch.setattr(in_context, "CONTEXT", in_context.Context(within=math.inf, whole=-math.inf, seconds=0.01))


class Times:
    """Stands in for `kernel_times`: every kernel of a later build takes `ratio` of its time in the first one."""

    def __init__(self, ratio: float) -> None:
        self.ratio, self.builds = ratio, 0

    def __call__(self, models: Sequence[Any], tensors: Sequence[Any], *, seconds: float) -> list[dict[str, float]]:
        self.builds += 1
        first, second = kernel_times(models, tensors, seconds=seconds)
        return [dict.fromkeys(first, 1.0), dict.fromkeys(second, self.ratio**self.builds)]


def _notes(model: nn.Module, x: Tensor, store: Path) -> list[str]:
    """Return the remarks of a run that measures nothing more."""
    tuned = fx.optimize(model, x, trials=TRIALS, store=store, progress=False)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x), rtol=1e-4, atol=1e-5)
    assert all(task.how == "measured" for task in tuned.report.tasks)
    return [task.note for task in tuned.report.tasks if task.note]


def test_a_schedule_that_is_faster_in_the_model_is_chosen_and_remembered(
    model: nn.Module, x: Tensor, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Times(0.5)
    monkeypatch.setattr(in_context, "kernel_times", times)
    notes = _notes(model, x, store)
    assert len(notes) == 2  # of both tasks, the weights of one of which are packed
    assert all("chosen by its time in the model" in note for note in notes)
    assert times.builds == in_context.CONTEXT.others
    assert _notes(model, x, store) == notes
    assert times.builds == in_context.CONTEXT.others  # nothing was timed again


def test_slower_and_equal_schedules_are_not_chosen(
    model: nn.Module, x: Tensor, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_context, "kernel_times", Times(0.995))
    assert not _notes(model, x, store)


def test_a_model_that_is_not_faster_is_not_changed(
    model: nn.Module, x: Tensor, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_context, "kernel_times", Times(0.5))
    monkeypatch.setattr(in_context, "CONTEXT", in_context.Context(within=math.inf, whole=1.0, seconds=0.01))
    assert not _notes(model, x, store)
    monkeypatch.setattr(in_context, "kernel_times", None)
    assert not _notes(model, x, store)  # that is remembered too


@pytest.mark.parametrize("name", ["damage_by_kernels", "kernel_times"])
def test_a_build_that_fails_changes_nothing(
    name: str, model: nn.Module, x: Tensor, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("of a kernel")

    monkeypatch.setattr(in_context, name, fails)
    assert not _notes(model, x, store)


def test_kernels_that_write_elsewhere_are_not_chosen(
    model: nn.Module, x: Tensor, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_context, "kernel_times", Times(0.5))
    monkeypatch.setattr(in_context, "damage_by_kernels", lambda *_: "kernel k: it writes elsewhere")
    assert not _notes(model, x, store)


def test_large_models_are_not_compiled_several_times(
    model: nn.Module, x: Tensor, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_context, "kernel_times", Times(0.5))
    monkeypatch.setattr(
        in_context, "CONTEXT", in_context.Context(within=math.inf, whole=-math.inf, constants=64 * 96 * 4 - 1)
    )
    assert not _notes(model, x, store)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0, 1.05, 1.2, 1.02], [3, 1]),  # the first one is the fastest
        ([1.05, 1.0, 1.01, 1.02], [2, 0]),
        ([1.4, 1.0, 1.01, 1.02], [2, 0]),
        ([1.4, 1.0], [0]),
        ([2.1, 1.0, 1.01, 1.02], [2, 3]),
        ([1.2, 1.0, 1.15], [0]),
    ],
)
def test_the_schedule_that_was_measured_first_is_timed_too(
    seconds: list[float], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_context, "CONTEXT", in_context.Context())
    state = TaskState(Mock(weight=1), np.random.default_rng(0))
    for index, each in enumerate(seconds):
        candidate = Candidate(Mock(key="sketch"), (index,), 0.0, "gradient")
        state.known.add(candidate, each)
        state.measured[candidate.key] = Measurement(Status.OK, each, error=0.0)
    fastest = next(at_hand(state))
    ((_, *others),) = in_context._ranked([state], [fastest])
    assert [other.candidate.point[0] for other in others if other.candidate] == expected


def test_time_is_kept_for_it_if_there_is_enough() -> None:
    assert seconds_reserved(None, 10) == 0
    assert seconds_reserved(math.inf, 10) == 0
    assert seconds_reserved(2 * seconds_needed(10), 10) == 0
    assert seconds_reserved(100 * seconds_needed(10), 10) == seconds_needed(10)


def test_kernels_are_timed_in_calls(model: nn.Module, x: Tensor) -> None:
    compiled = compile_model(import_model(model, x, "cpu"))
    before = x.clone()
    (times,) = kernel_times([compiled], [x], seconds=0.01)
    kernels = {str(name.name_hint) for name in compiled.lowered.get_global_vars()} - {"main"}
    assert kernels <= set(times)
    assert all(0 < times[name] < 1 for name in kernels)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_no_more_is_timed_than_there_are_seconds_for() -> None:
    """Each further schedule takes a build of the model and its timing, and so does the choice."""
    build = 7.0 + 2 * in_context.CONTEXT.seconds
    assert affordable(7.0, math.inf) == in_context.CONTEXT.others
    assert affordable(7.0, (in_context.CONTEXT.others + 1) * build) == in_context.CONTEXT.others
    assert [affordable(7.0, builds * build) for builds in (2.5, 1.9, 0.5, -3.0)] == [1, 0, 0, 0]
