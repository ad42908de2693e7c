"""Tasks go back to float32 until a model is within the tolerance, the worst first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike.errors import InvalidOption
from felixlike.runtime import Verification
from felixlike.runtime.agreement import changed_classes
from felixlike.tuning.choice import Choice, How
from felixlike.tuning.compiling import Build
from felixlike.tuning.tolerance import within

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
