"""Tasks go back to float32 until a model is within the tolerance, the worst first."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support import operators as op
from torch import nn

import felixlike as fx
from felixlike.errors import FallbackWarning, InvalidOption
from felixlike.frontend import import_model, make_task
from felixlike.hardware import described_target, with_precision
from felixlike.measure import Measurement, Status
from felixlike.runtime import Verification
from felixlike.runtime.agreement import changed_classes
from felixlike.search import Candidate
from felixlike.tuning.choice import Choice, How
from felixlike.tuning.compiling import Build
from felixlike.tuning.state import TaskState
from felixlike.tuning.tolerance import alternatives, within
from felixlike.tuning.verifying import verify

EXACT = 1e-6


def _rounded(error: float | None) -> Choice:
    return Choice(How.UNMEASURED, None, math.nan, error)


@dataclass
class _Interrupts:
    ended: bool = False


def _held(
    tolerance: float, errors: Sequence[float | None], *, least: float = EXACT, ended: bool = False
) -> tuple[list[float | None], float, list[str]]:
    """Hold a model whose error is the largest one of its tasks. Returns the tasks' errors, its error and the notes."""
    notes: list[str] = []

    def build(choices: Sequence[Choice]) -> Build:
        return Build(None, tuple(choices), (None,) * len(choices))  # type: ignore[arg-type]

    def verified(one: Build) -> Verification:
        return Verification(max([least, *(choice.error or 0.0 for choice in one.choices)]), "float64")

    first = build([_rounded(error) for error in errors])
    exact = [_rounded(EXACT) if error is None or error > EXACT else None for error in errors]
    interrupts: Any = _Interrupts(ended)
    last, verification = within(
        tolerance,
        first,
        verified(first),
        exact,
        rebuilt=build,
        verified=verified,
        interrupts=interrupts,
        note=notes.append,
    )
    assert all("off by" in new.note for old, new in zip(errors, last.choices, strict=True) if new.error != old)
    return [choice.error for choice in last.choices], verification.error, notes


def test_the_worst_tasks_go_back_first_and_no_more_than_needed() -> None:
    assert _held(3e-3, [2e-3, 9e-3, EXACT, 5e-3]) == ([2e-3, EXACT, EXACT, EXACT], 2e-3, [])
    assert _held(1e-2, [2e-3, 9e-3]) == ([2e-3, 9e-3], 9e-3, [])


def test_a_tolerance_that_float32_exceeds_is_told() -> None:
    errors, error, notes = _held(1e-5, [2e-3, 9e-3], least=1e-4)
    assert errors == [EXACT, EXACT]
    assert error == 1e-4
    assert notes == ["the model is off by 1.0e-04, more than the tolerance of 1e-05"]


def test_an_interrupt_and_an_unknown_error_replace_nothing() -> None:
    assert _held(1e-5, [2e-3], ended=True)[0] == [2e-3]
    build = Build(None, (_rounded(2e-3),), (None,))  # type: ignore[arg-type]
    nothing: Any = None
    unknown = Verification(math.nan, "")
    options = {"rebuilt": nothing, "verified": nothing, "interrupts": _Interrupts(), "note": nothing}
    assert within(1e-5, build, unknown, [_rounded(EXACT)], **options) == (build, unknown)


def _state(*precisions: str) -> TaskState:
    """Return the state of a product that was measured in these precisions, fastest first."""
    target = with_precision(described_target("zen5", cores=2), "bfloat16")
    state = TaskState(
        make_task(op.matmul(64, 512, 512), target, name="product", constants=[1]), np.random.default_rng(0)
    )
    for seconds, precision in enumerate(precisions, 1):
        sketch = next(s for s in state.space.sketches if s.precision == precision)
        candidate = Candidate(sketch, tuple(sketch.sample(1, seed=0)[0].tolist()), math.nan, "random")
        state.known.add(candidate, float(seconds))
        state.measured[candidate.key] = Measurement(Status.OK, float(seconds), error=EXACT)
    return state


def _measured(state: TaskState, place: int) -> Choice:
    seconds, candidate = state.known.best[place]
    return Choice(How.MEASURED, candidate, seconds, EXACT)


def test_tasks_that_begin_to_round_in_the_model_go_back_too() -> None:
    """A schedule that rounds may replace a measured float32 one, if it is faster in the model."""
    state, only = _state("float32", "bfloat16"), _state("float32")
    choices = [_measured(state, 0), _measured(only, 0)]
    notes: list[str] = []
    nothing: Any = None
    exact = alternatives([state, only], choices, nothing, nothing, nothing, notes.append)
    assert exact == [choices[0], None]

    def build(choices: Any) -> Build:
        return Build(nothing, tuple(choices), (None,) * len(choices))

    def verified(one: Build) -> Verification:
        rounds = one.choices[0].candidate is not choices[0].candidate
        return Verification(2e-3 if rounds else EXACT, "float64")

    options: dict[str, Any] = {
        "rebuilt": build,
        "verified": verified,
        "interrupts": _Interrupts(),
        "note": notes.append,
    }
    changed = build([_measured(state, 1), choices[1]])
    last, verification = within(1e-3, changed, verified(changed), exact, **options)
    assert verification.error == EXACT
    assert [choice.candidate for choice in last.choices] == [choice.candidate for choice in choices]
    assert not notes


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf, "1e-3", True])
def test_other_tolerances_are_refused(tolerance: Any) -> None:
    with pytest.raises(InvalidOption, match="tolerance"):
        fx.optimize(nn.Linear(4, 4), (2, 4), tolerance=tolerance)


def test_a_model_in_bfloat16_goes_back_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FELIXLIKE_DEVICE", "zen5")  # its products of pairs run on any processor
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 64)).eval(), torch.randn(32, 256)
    options: dict[str, Any] = {"effort": "instant", "progress": False, "precision": "bfloat16"}
    report = fx.optimize(model, x, **options).report
    assert {task.precision for task in report.tasks} == {"bfloat16"}
    assert (report.rows, "rows" in str(report)) == (32, True)
    exact = fx.optimize(model, x, tolerance=1e-5, **options).report
    assert {task.precision for task in exact.tasks} == {"float32"}
    assert exact.error <= 1e-5 < report.error
    assert all("tolerance" in task.note for task in exact.tasks)


def test_factors_in_bfloat16_are_not_told_to_stay_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs round nothing there, so there is no schedule to go back to."""
    monkeypatch.setenv("FELIXLIKE_DEVICE", "zen5")
    model, x = nn.Linear(64, 64).eval().bfloat16(), torch.randn(32, 64).bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        tuned = fx.optimize(model, x, precision="bfloat16", tolerance=0.05, effort="instant", progress=False)
    assert {task.precision for task in tuned.report.tasks} == {"bfloat16"}


def test_classes_are_the_places_of_the_largest_elements() -> None:
    want = torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.0, 5.0]])
    got = _with_first_reversed(want)
    assert changed_classes(got, want) == (1, 3)
    assert changed_classes((got, want.long()), (want, want.long())) == (1, 3)
    assert changed_classes(want[:, :1], want[:, :1]) == (0, 0)
    assert changed_classes(want[0], want[0]) == (0, 0)


def _with_first_reversed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first row is reversed."""
    return torch.cat([tensor[:1].flip(1), tensor[1:]])


def _three() -> tuple[nn.Module, torch.Tensor]:
    """Return a model whose products round what other products write."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32)]
    return nn.Sequential(*layers).eval(), torch.randn(32, 64)


@pytest.mark.parametrize(("tolerance", "rounds"), [(None, True), (0.02, True), (1e-3, False)])
def test_tensors_between_kernels_are_float32_where_the_tolerance_is_tight(
    tolerance: float | None, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FELIXLIKE_DEVICE", "zen5")
    model, x = _three()
    imported: list[Any] = []

    def keep(*arguments: Any, **options: Any) -> Any:
        imported.append(import_model(*arguments, **options))
        return imported[-1]

    monkeypatch.setattr("felixlike.tuning.run.import_model", keep)
    options: dict[str, Any] = {"effort": "instant", "progress": False, "precision": "bfloat16"}
    tuned = fx.optimize(model, x, tolerance=tolerance, **options)
    assert any("_cast" in task.name for task in imported[0].tasks) == rounds
    assert len(imported) == 1
    assert tuned.report.error <= (tolerance or 0.02)


def test_tensors_between_kernels_go_back_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a model whose tensors are rounded exceeds the tolerance, it is optimized again without that."""
    monkeypatch.setenv("FELIXLIKE_DEVICE", "zen5")
    model, x = _three()

    def exceeded(imported: Any, *arguments: Any) -> Verification:
        verification = verify(imported, *arguments)
        rounds = any("_cast" in task.name for task in imported.tasks)
        return replace(verification, error=0.5) if rounds else verification

    monkeypatch.setattr("felixlike.tuning.run.verify", exceeded)
    options: dict[str, Any] = {"effort": "instant", "progress": False, "precision": "bfloat16"}
    tuned = fx.optimize(model, x, tolerance=0.01, **options)
    assert not any("_cast" in task.name for task in tuned.report.tasks)
    assert tuned.report.error <= 0.01


@pytest.mark.parametrize("space", ["default", "own"])
def test_schedules_of_any_space_multiply_rounded_tensors(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of MetaSchedule multiply in float32, but what a rewrite has rounded."""
    monkeypatch.setenv("FELIXLIKE_DEVICE", "zen5")
    model, x = _three()
    options: dict[str, Any] = {"effort": "instant", "progress": False, "precision": "bfloat16"}
    report = fx.optimize(model, x, space=space, **options).report
    rounded = {task.name for task in report.tasks if (task.precision, task.rounded) == ("bfloat16", "factors")}
    assert len(rounded) == (2 if space == "default" else 3)  # the first product's factor is the input
    assert 1e-4 < report.error < 0.02
