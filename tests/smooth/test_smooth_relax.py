"""Smooth features of real sketches approximate the exact ones, and their gradients are correct."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import workloads

from felixlike.errors import InvalidOption, InvalidPoint
from felixlike.features import NAMES, formulas
from felixlike.smooth import Relaxed, relax, together
from felixlike.smooth.relax import WIDTH
from felixlike.symbolic import Kind, sketches

CASES = ("matmul_relu", "conv2d", "softmax", "depthwise", "max_pool")


@pytest.fixture(scope="module", params=CASES)
def relaxed(request: pytest.FixtureRequest) -> Relaxed:
    return relax(formulas(sketches(workloads.ALL[request.param]())[1]))


def test_smooth_features_are_near_exact_ones_at_points(relaxed: Relaxed) -> None:
    points = relaxed.sketch.sample(100, seed=4)
    exact = relaxed.formulas.evaluate(points)
    with torch.no_grad():
        smooth = np.expm1(relaxed(relaxed.log_points(points)).numpy())
    assert smooth.shape == exact.shape
    error = np.abs(smooth - exact)[exact > 0] / exact[exact > 0]
    assert np.median(error) <= 0.05
    assert np.quantile(error, 0.9) <= 0.2
    assert all(relaxed.saturated.values())


def test_smaller_widths_have_smaller_errors(relaxed: Relaxed) -> None:
    points = relaxed.sketch.sample(60, seed=6)
    exact = np.log1p(relaxed.formulas.evaluate(points))
    errors = []
    for width in (0.2, 0.05, 0.01):
        relaxed.width = width
        with torch.no_grad():
            errors.append(float(np.abs(relaxed(relaxed.log_points(points)).numpy() - exact).mean()))
    relaxed.width = WIDTH
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_finite_ten_percent_outside_of_the_box(relaxed: Relaxed, dtype: torch.dtype) -> None:
    relaxed = relax(relaxed.formulas, dtype=dtype)
    sketch = relaxed.sketch
    start = relaxed.log_points(sketch.sample(64, seed=8))
    generator = torch.Generator().manual_seed(0)
    for column, variable in enumerate(sketch.variables):
        if variable.kind is Kind.LOCATION:
            continue
        top = float(np.log1p(variable.choices[-1]))
        start[:, column] = (torch.rand(64, generator=generator, dtype=torch.float64) * 1.2 - 0.1) * top
    x = start.requires_grad_(True)
    values = relaxed(x)
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_gradients_agree_in_float32_and_float64(relaxed: Relaxed) -> None:
    points = relaxed.sketch.sample(64, seed=3)
    gradients: list[torch.Tensor] = []
    for dtype in (torch.float32, torch.float64):
        relaxed_in_dtype = relax(relaxed.formulas, dtype=dtype)
        x = relaxed_in_dtype.log_points(points).requires_grad_(True)
        gradients += torch.autograd.grad(relaxed_in_dtype(x).sum(), x)
    torch.testing.assert_close(*gradients, atol=1e-2, rtol=1e-3)


def test_gradients_agree_with_finite_differences(relaxed: Relaxed) -> None:
    sketch = relaxed.sketch
    x = relaxed.log_points(sketch.sample(4, seed=9))
    columns = [i for i, v in enumerate(sketch.variables) if v.kind is not Kind.LOCATION and not v.fixed]
    weight = torch.linspace(0.1, 1.0, len(NAMES), dtype=torch.float64)

    def score(z: torch.Tensor) -> torch.Tensor:
        moved = x.clone()
        moved[:, columns] = z
        scores: torch.Tensor = (relaxed(moved) * weight).sum(dim=(1, 2))
        return scores

    z = x[:, columns] + 0.1
    assert torch.autograd.gradcheck(score, (z.requires_grad_(True),), eps=1e-6, atol=1e-3, rtol=1e-4)


def test_second_derivatives_are_finite(relaxed: Relaxed) -> None:
    x = relaxed.log_points(relaxed.sketch.sample(3, seed=1)).requires_grad_(True)
    (first,) = torch.autograd.grad(relaxed(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    assert torch.isfinite(second).all()
    assert second.abs().sum() > 0


@pytest.mark.parametrize(
    ("option", "value", "received", "expected"),
    [
        ("formulas", 5, "an int", "felixlike.features.formulas(sketch)"),
        ("width", 0, "0", "greater than 0"),
        ("width", float("nan"), "nan", "greater than 0"),
        ("width", "wide", "'wide'", "greater than 0"),
        ("dtype", torch.float16, "torch.float16", "torch.float64"),
        ("dtype", "float32", "'float32'", "torch.float64"),
    ],
)
def test_options_are_checked(option: str, value: Any, received: str, expected: str) -> None:
    features_of_sketch = formulas(sketches(workloads.matmul(16, 16, 16))[0])
    with pytest.raises(InvalidOption, match=f"{option}.*{received}") as caught:
        relax(**{"formulas": features_of_sketch, option: value})
    assert caught.value.where == "relax"
    assert expected in str(caught.value)


def test_points_of_another_shape_are_refused() -> None:
    sketch = sketches(workloads.matmul(16, 16, 16))[0]
    relaxed, points = relax(formulas(sketch)), sketch.sample(3, seed=0)
    rejected = [(None, "nan"), ("x", "'x'"), (5, "5"), (points[0], "(11,)"), (points[:, :2], "(3, 2)")]
    for wrong, received in rejected:
        with pytest.raises(InvalidPoint, match="points") as caught:
            relaxed.log_points(wrong)
        assert caught.value.where == "relax"
        assert received in caught.value.what
    with pytest.raises(InvalidPoint, match="a ndarray") as caught:
        relaxed(points)
    assert "log_points(points)" in caught.value.remedy
    with pytest.raises(InvalidPoint) as caught:
        relaxed(torch.zeros(3, 2))
    assert all(shape in caught.value.what for shape in ("(3, 2)", "[count, 11]"))


def test_structures_are_evaluated_together_as_each_alone() -> None:
    chosen = [s for name in ("matmul_relu", "conv2d") for s in sketches(workloads.ALL[name]())[:2]]
    alone, points = [relax(formulas(sketch)) for sketch in chosen], [s.sample(3, seed=1, paths=1) for s in chosen]
    locations = [tuple(p[0, list(s.location_columns)].tolist()) for s, p in zip(chosen, points, strict=True)]
    stacked = together(list(zip(alone, locations, strict=True)))
    log_x = torch.zeros(len(chosen), 3, max(len(s.variables) for s in chosen), dtype=torch.float64)
    for place, (module, own) in enumerate(zip(alone, points, strict=True)):
        log_x[place, :, : own.shape[1]] = module.log_points(own)
    log_x.requires_grad_(True)
    features = stacked(log_x, WIDTH).reshape(len(chosen), 3, -1, len(NAMES))
    (gradient,) = torch.autograd.grad(features.sum(), log_x)
    for place, (module, own) in enumerate(zip(alone, points, strict=True)):
        x = module.log_points(own).requires_grad_(True)
        expected = module(x)
        (slope,) = torch.autograd.grad(expected.sum(), x)
        _, rows = module.of_structure(locations[place])
        torch.testing.assert_close(features[place, :, : len(rows)], expected[:, rows])
        assert not features[place, :, len(rows) :].any()
        torch.testing.assert_close(gradient[place, :, : x.shape[1]], slope)
        assert not gradient[place, :, x.shape[1] :].any()
