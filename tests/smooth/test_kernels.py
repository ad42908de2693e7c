"""Smooth kernels are within their error bounds, and have gradients."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from felixlike.smooth import kernels

WIDTHS = st.floats(1e-3, 1.0)
LOGS = st.floats(-30.0, 30.0)


def _tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@settings(max_examples=200, deadline=None)
@given(LOGS, WIDTHS)
def test_step_is_within_its_bound(x: float, width: float) -> None:
    step = float(kernels.smooth_step(_tensor(x), width))
    assert 0 <= step <= 1
    if abs(x) > 1e-6:
        assert abs(step - (x > 0)) <= width**2 / (4 * x**2) + 1e-12


@settings(max_examples=200, deadline=None)
@given(LOGS, WIDTHS)
def test_the_step_of_felix_is_within_its_bound(x: float, width: float) -> None:
    step = float(kernels.cauchy_step(_tensor(x), width))
    assert 0 <= step <= 1
    if abs(x) > 1e-6:
        assert abs(step - (x > 0)) <= width / (math.pi * abs(x)) + 1e-12


@settings(max_examples=200, deadline=None)
@given(LOGS, LOGS, WIDTHS)
def test_maximum_and_minimum_are_within_their_bounds(a: float, b: float, width: float) -> None:
    above = float(kernels.smooth_maximum(_tensor(a), _tensor(b), width)) - max(a, b)
    below = min(a, b) - float(kernels.smooth_minimum(_tensor(a), _tensor(b), width))
    assert -1e-12 <= above <= width / 2 + 1e-12
    assert -1e-12 <= below <= width / 2 + 1e-12


@pytest.mark.parametrize("x", [-2.0, -0.1, 0.0, 0.3, 1.5])
def test_step_and_maximum_are_convolutions_with_the_documented_kernel(x: float) -> None:
    width, reach = 0.2, 2e6
    # t = width · sinh(u) makes the nodes dense near 0; beyond −reach, width² / (2 · reach) of the maximum remains.
    end = math.asinh(reach / width)
    # ∫ [x ≥ t] k(t) dt ends at t = x; the maximum has a corner there and none elsewhere.
    u = torch.linspace(-end, math.asinh(x / width), 200_001, dtype=torch.float64)
    t = width * torch.sinh(u)
    density = width**2 / (2 * (t * t + width**2) ** 1.5) * width * torch.cosh(u)
    assert float(torch.trapezoid(density, u)) == pytest.approx(float(kernels.smooth_step(_tensor(x), width)), abs=1e-6)
    assert float(torch.trapezoid((x - t) * density, u)) == pytest.approx(
        float(kernels.smooth_maximum(_tensor(x), _tensor(0.0), width)), abs=1e-6
    )


@pytest.mark.parametrize("x", [-2.0, -0.1, 0.0, 0.3, 1.5])
def test_the_step_of_felix_is_a_convolution_with_its_kernel(x: float) -> None:
    width, reach = 0.2, 2e6
    u = torch.linspace(-math.asinh(reach / width), math.asinh(x / width), 200_001, dtype=torch.float64)
    t = width * torch.sinh(u)
    density = width / (math.pi * (t * t + width**2)) * width * torch.cosh(u)
    # width / (π · reach) of the integral lies beyond −reach
    assert float(torch.trapezoid(density, u)) == pytest.approx(float(kernels.cauchy_step(_tensor(x), width)), abs=1e-6)


def test_the_convolution_of_felixs_kernel_with_the_maximum_diverges() -> None:
    """Each tenfold reach adds w · ln 10 / π, at any x; with our kernel the integral approaches the smooth maximum."""
    width, x = 0.2, 0.3
    felix, ours = [], []
    for reach in (1e2, 1e3, 1e4, 1e5):
        u = torch.linspace(-math.asinh(reach / width), math.asinh(x / width), 200_001, dtype=torch.float64)
        t = width * torch.sinh(u)
        ramp = (x - t) * width * torch.cosh(u)
        felix.append(float(torch.trapezoid(ramp * width / (math.pi * (t * t + width**2)), u)))
        ours.append(float(torch.trapezoid(ramp * width**2 / (2 * (t * t + width**2) ** 1.5), u)))
    for shorter, longer in itertools.pairwise(felix):
        assert longer - shorter == pytest.approx(width * math.log(10) / math.pi, rel=0.01)
    limit = float(kernels.smooth_maximum(_tensor(x), _tensor(0.0), width))
    assert [limit - value for value in ours] == pytest.approx(
        [width**2 / (2 * r) for r in (1e2, 1e3, 1e4, 1e5)], rel=0.05
    )


@settings(max_examples=200, deadline=None)
@given(LOGS, st.floats(0.01, 20.0))
def test_log_diff_exp_is_within_its_bound(a: float, gap: float) -> None:
    result = float(kernels.log_diff_exp(_tensor(a), _tensor(a - gap)))
    d = -math.expm1(-gap)
    exact = a + math.log(d)
    assert exact - 1e-9 <= result <= exact + math.log1p((kernels.FLOOR / d) ** 2) + 1e-9


def test_log_diff_exp_stays_finite_outside_its_domain() -> None:
    assert torch.isfinite(kernels.log_diff_exp(_tensor(0.0, 0.0, 0.0), _tensor(0.0, 3.0, 100.0))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_diff_exp_has_finite_gradients(dtype: torch.dtype) -> None:
    """This includes float32, where 1 − e^(b−a) is 1 except for similar arguments."""
    a = torch.linspace(-100, 100, 4001, dtype=dtype, requires_grad=True)
    b = torch.zeros(4001, dtype=dtype, requires_grad=True)
    gradients = torch.autograd.grad(kernels.log_diff_exp(a, b).sum(), (a, b))
    assert all(torch.isfinite(g).all() for g in gradients)
    torch.testing.assert_close(gradients[0][a > 17], torch.ones(int((a > 17).sum()), dtype=dtype))


def test_mix_takes_the_value_of_the_first_open_gate() -> None:
    values = _tensor(5.0, 7.0, 9.0)
    for gates, expected in (((1.0, 0.0), 5.0), ((0.0, 1.0), 7.0), ((0.0, 0.0), 9.0), ((1.0, 1.0), 5.0)):
        assert float(kernels.mix(_tensor(*gates).unbind(), values.unbind())) == expected


@pytest.mark.parametrize("x", [-5.0, -0.1, 0.0, 1e-9, 0.3, 8.0])
def test_first_and_second_gradients_are_correct(x: float) -> None:
    for function in (
        lambda t: kernels.smooth_step(t, 0.05),
        lambda t: kernels.smooth_maximum(t, torch.zeros_like(t), 0.05),
        lambda t: kernels.smooth_minimum(t, torch.zeros_like(t), 0.05),
        kernels.softplus,
    ):
        point = _tensor(x).requires_grad_(True)
        assert torch.autograd.gradcheck(function, (point,), eps=1e-7, atol=1e-4)
        assert torch.autograd.gradgradcheck(function, (point,), eps=1e-7, atol=1e-3)
