"""Test models with dynamic sizes in bfloat16: what is rounded, at all sizes, and what stays float32."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support import dynamic_operators as operators
from torch import Tensor, nn

import felixlike as fx
from felixlike import dynamic, records
from felixlike.dynamic import plan
from felixlike.errors import FallbackWarning
from felixlike.frontend import make_task
from felixlike.hardware import device_name, imitated_target, with_precision

PAIRS = imitated_target("zen5")
"""Schedules for a processor with the instruction for pairs, and code that runs on any."""

_T = fx.Dim("T", range(1, 21))
_FEW = fx.Dim("T", range(1, 9))
"""Sizes for tests that do not depend on them: fewer heights of tiles are compiled."""
_TWO = fx.Dim("T", [1, 3])


class _Layers(nn.Module):
    """Two products with an odd number of steps in the second, and a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(64, 129), nn.LayerNorm(129), nn.Linear(129, 48)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.norm(nn.functional.gelu(self.up(x))))
        return result


def _model() -> _Layers:
    torch.manual_seed(0)
    return _Layers().eval()


def _optimized(model: nn.Module, target: Any = PAIRS, dim: fx.Dim = _FEW, **options: Any) -> fx.Optimized:
    given: dict[str, Any] = {"precision": "bfloat16", "effort": "instant", "progress": False} | options
    return fx.optimize(model, ((1, dim, 64),), target=target, **given)


def _rounded(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return a layer's output for factors that are rounded first."""
    return nn.functional.linear(x.bfloat16().float(), layer.weight.bfloat16().float(), layer.bias)


def _reduced(tuned: fx.Optimized) -> list[str]:
    return sorted(layer for task in tuned.report.tasks if task.precision == "bfloat16" for layer in task.layers)


def test_both_factors_are_rounded_at_every_size(tmp_path: Path) -> None:
    model = _model()
    tuned = _optimized(model, dim=_T)
    assert _reduced(tuned) == ["down", "up + gelu"]
    assert "Products: bfloat16 factors in down, up + gelu; float32 elsewhere" in str(tuned.report)
    assert 1e-4 < tuned.report.error < 1e-2
    assert tuned.report.rows == 0
    tuned.save(tmp_path / "model.flx")
    loaded = fx.load(tmp_path / "model.flx")
    for size in range(1, 21):
        x = torch.randn(1, size, 64)
        with torch.no_grad():
            expected = _rounded(model.down, model.norm(nn.functional.gelu(_rounded(model.up, x))))
        got = tuned(x)
        assert (got - expected).abs().max() < 5e-3 * expected.abs().max(), size
        assert torch.equal(loaded(x), got)


def test_timings_of_both_forms_are_kept_apart(tmp_path: Path) -> None:
    """A second run finds the timings of both, and comes to the same choice."""
    model, store, few = nn.Linear(64, 32).eval(), tmp_path / "runs.sqlite", fx.Dim("T", [1, 2])
    options: dict[str, Any] = {"target": PAIRS, "precision": "bfloat16", "progress": False, "store": store}
    tuned, again = (fx.optimize(model, ((few, 64),), trials=200, **options) for _ in range(2))
    with records.open(store, read_only=True) as opened:
        points = [
            brief.point
            for stored in opened.workloads()
            for brief in opened.briefs(stored.task, device=device_name(PAIRS))
        ]
    assert {len(point) for point in points} == {3, 4}
    assert again.report.trials == 0
    assert _reduced(again) == _reduced(tuned)


def test_models_in_bfloat16_multiply_pairs_and_round_nothing_more() -> None:
    model = _model().bfloat16()
    tuned = fx.optimize(
        model,
        (torch.randn(1, 8, 64).bfloat16(),),
        dynamic_shapes=({1: _T},),
        target=PAIRS,
        effort="instant",
        progress=False,
    )
    assert _reduced(tuned) == []
    for size in range(1, 21):
        x = torch.randn(1, size, 64).bfloat16()
        with torch.no_grad():
            want, exact = model(x), _model().bfloat16().double()(x.double())
        got = tuned(x)
        assert got.dtype == torch.bfloat16
        limit = max((want - exact).abs().max(), 2.0**-8 * exact.abs().max())
        assert (got - exact).abs().max() <= 1.5 * limit, size


def test_a_tolerance_puts_products_back_to_float32() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned = _optimized(_model(), dim=_TWO, tolerance=1e-4)
        assert _reduced(_optimized(_model(), dim=_TWO, tolerance=1e-2)) == ["down", "up + gelu"]
    assert _reduced(tuned) == []
    assert tuned.report.error < 1e-4
    assert "All products are float32: with bfloat16, the model is off by" in tuned.report.note
    assert "bfloat16 was requested, but all are float32" in str(tuned.report)
    with pytest.warns(FallbackWarning, match="off by .*, more than the tolerance of 1e-12"):
        _optimized(_model(), dim=_TWO, tolerance=1e-12)


def test_weights_without_a_number_in_bfloat16_stay_float32() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(64, 32), nn.Linear(32, 16)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.down(self.up(x * 1e-20).tanh())
            return result

    torch.manual_seed(0)
    model = Scaled().eval()
    with torch.no_grad():
        model.up.weight[3, 5] = 3.4e38
    tuned, x = _optimized(model), torch.randn(1, 7, 64)
    assert _reduced(tuned) == ["down"]
    with torch.no_grad():
        assert (tuned(x) - model(x)).abs().max() < 1e-2


def test_processors_without_the_instruction_compute_in_float32() -> None:
    tuned = _optimized(_model(), imitated_target("zen3"))
    assert _reduced(tuned) == []
    assert "bfloat16 was requested, but all are float32" in str(tuned.report)
    assert tuned.report.error < 1e-5


def test_float64_models_stay_float64() -> None:
    model, x = _model().double(), torch.randn(1, 8, 64).double()
    tuned = fx.optimize(
        model, (x,), dynamic_shapes=({1: _FEW},), target=PAIRS, precision="bfloat16", effort="instant", progress=False
    )
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert _reduced(tuned) == []


def test_a_single_operator_takes_its_precision_from_the_task() -> None:
    func = operators.dense_of_batch(32, 48)
    task = make_task(func, with_precision(PAIRS, "bfloat16"), name="dense")
    kernel = dynamic.compile(task, [fx.Dim("B", [1, 2, 4]), fx.Dim("T", range(1, 8))], measure=False)
    for batch, t in ((1, 1), (2, 7), (4, 5)):
        x, w, r = torch.randn(batch, t, 32), torch.randn(48, 32), torch.randn(batch, t, 48)
        torch.testing.assert_close(kernel(x, w, r), x.bfloat16().float() @ w.bfloat16().float().T + r)


def test_weights_of_a_single_operator_are_packed_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "in_pairs", lambda *_: (True,))
    kernel = dynamic.compile(operators.dense(31, 48), _T, measure=False)
    assert (kernel.packed_dtype, kernel.packed_shape[1::2]) == ("bfloat16", (16, 2))
    x, w, b = torch.randn(9, 31), torch.randn(48, 31), torch.randn(48)
    torch.testing.assert_close(kernel(x, w, b), x.bfloat16().float() @ w.bfloat16().float().T + b)


def test_a_dynamic_batch_of_convolutions_rounds_in_each_part() -> None:
    torch.manual_seed(0)
    conv, last = nn.Conv2d(16, 1024, 1), nn.Linear(1024, 1024)
    model = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval()
    batch = fx.Dim("N", [1, 2])
    tuned = fx.optimize(
        model,
        ((batch, 16, 8, 8),),
        target=imitated_target("zen3"),
        precision="bfloat16",
        effort="instant",
        progress=False,
    )
    assert tuned.report.precision == "bfloat16"
    assert {task.layers for task in tuned.report.tasks if task.precision == "bfloat16"} == {("4, N=1",), ("4, N=2",)}
    assert 1e-6 < tuned.report.error < 1e-2
    for size in (1, 2):
        x = torch.randn(size, 16, 8, 8)
        with torch.no_grad():
            assert (tuned(x) - model(x)).abs().max() < 2e-2 * model(x).abs().max()


def test_a_batch_in_parts_is_within_the_tolerance() -> None:
    """Samples that no part was compared with count, too."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 512)]
    model, x = nn.Sequential(*layers).eval(), torch.zeros(6, 2, 8, 8)
    x[4:] = torch.randn(2, 2, 8, 8)
    options: dict[str, Any] = {"target": PAIRS, "precision": "bfloat16", "effort": "instant", "progress": False}
    batch = ({0: fx.Dim("N", range(1, 7))},)
    rounded = fx.optimize(model, (x,), dynamic_shapes=batch, **options)
    assert "bfloat16" in {task.precision for task in rounded.report.tasks}
    assert rounded.report.rows == 1 + 3 + 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = fx.optimize(model, (x,), dynamic_shapes=batch, tolerance=1e-5, **options)
    assert {task.precision for task in exact.report.tasks} == {"float32"}
    assert exact.report.error <= 1e-5 < rounded.report.error
    with pytest.warns(FallbackWarning, match="off by .*, more than the tolerance of 1e-12"):
        fx.optimize(model, (x,), dynamic_shapes=batch, tolerance=1e-12, **options)
