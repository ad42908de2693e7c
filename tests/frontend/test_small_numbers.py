"""Tests that divisions and elementary functions agree with PyTorch where TVM's importer loses digits or whole steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply
from torch.nn import functional

import felixlike as fx
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_INF, _NAN = math.inf, math.nan
_NUMBERS = torch.tensor([0.0, 1, -1, 5, -5, 0.3, -0.7, 2.5, 1e6, -1e10, 1e30, _INF, -_INF, _NAN])
_X, _Y = (part.reshape(-1) for part in torch.meshgrid(_NUMBERS, _NUMBERS, indexing="ij"))
_FLUSHED = 2.0**-126
"""Exponentials below this number are 0."""
_STEPS = torch.arange(-30, 31) * 0.1

_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "remainder": lambda x, y: x % y,
    "remainder of a number": lambda x, y: 7.5 % x,
    "remainder by a number": lambda x, y: x % 0.1,
    "quotient": lambda x, y: x // y,
    "quotient of a number": lambda x, y: 7.5 // x,
    "quotient by a number": lambda x, y: torch.div(x, 0.1, rounding_mode="floor"),
    "quotient towards 0": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "length": torch.hypot,
}
_OF_ONE: dict[str, Callable[[Any], Any]] = {
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "atanh": torch.atanh,
    "tanh": torch.tanh,
    "log2": torch.log2,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "log of sigmoid": lambda x: functional.logsigmoid(-x),
}
_SIZES = torch.tensor([*(10.0**k for k in range(-30, 31, 2)), 0.2, 0.49, 0.51, 0.9999, 1.0001, 12.0, 30.0])
_ENDS = torch.tensor([0.0, -1.0, 1.0, _INF, -_INF, _NAN])


def _assert_agrees(functions: dict[str, Callable[..., Any]], *inputs: torch.Tensor) -> None:
    model = Apply(lambda *inputs: tuple(function(*inputs) for function in functions.values()))
    outputs = compile_model(import_model(model, inputs))(*inputs)
    for name, got, want in zip(functions, outputs, model(*inputs), strict=True):
        rtol = 1e-6 if got.dtype == torch.float32 else 1e-14 if got.dtype == torch.float64 else 1e-2
        torch.testing.assert_close(got, want, rtol=rtol, atol=_FLUSHED, equal_nan=True, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_and_remainders_are_those_of_pytorch(dtype: torch.dtype) -> None:
    _assert_agrees(_OF_TWO, _X.to(dtype), _Y.to(dtype))
    _assert_agrees(_OF_TWO, _STEPS.to(dtype), torch.full_like(_STEPS, 0.1, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_numbers_lose_no_digits(dtype: torch.dtype) -> None:
    _assert_agrees(_OF_ONE, torch.cat([_SIZES, -_SIZES, _ENDS]).to(dtype))


@pytest.mark.parametrize("function", [functional.softplus, functional.mish])
def test_convolutions_before_these_functions_have_schedules(function: Callable[[Any], Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), Apply(function)).eval()
    report = fx.optimize(model, (torch.randn(1, 3, 16, 16),), trials=0, progress=False).report
    assert "untuned" not in {task.how for task in report.tasks}


def test_narrow_types_are_computed_in_float32() -> None:
    x = torch.tensor([1e-3, -2e-3, 0.3, -0.7, 5.0, 250.0], dtype=torch.bfloat16)
    names = ("log1p", "expm1", "log2")
    _assert_agrees({name: _OF_ONE[name] for name in names} | {"remainder": lambda x: x % 0.7}, x)


def test_powers_of_2_have_whole_logarithms() -> None:
    x = 2.0 ** torch.arange(-126, 128)
    got = compile_model(import_model(Apply(lambda x: torch.log2(x).floor()), (x,)))(x)
    torch.testing.assert_close(got, torch.arange(-126.0, 128), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integers_may_be_divided_by_0(dtype: torch.dtype) -> None:
    """PyTorch raises an error. The processor's instruction would end the process."""
    x, y = torch.tensor([7, 8, 9, 1], dtype=dtype), torch.tensor([2, 0, 5, 0], dtype=dtype)
    model = Apply(lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), 7 // y))
    compiled = compile_model(import_model(model, (x, y)))
    for got, want in zip(compiled(x, y), model(x, y.clamp(min=1)), strict=True):
        torch.testing.assert_close(got, want)


def test_scheduled_quotients_that_are_rounded_are_exact() -> None:
    x, steps = torch.arange(64.0).reshape(8, 8), torch.tensor([3.0, 5, 7, 9, 10, 49, 0.1, 0.3]).reshape(8, 1)
    model = Apply(lambda x, y: ((x / y).floor(), (x / y).to(torch.int32), (x / x.amax(1, keepdim=True) >= 1).int()))
    fast = fx.optimize(model, (torch.rand(8, 8) + 0.5, torch.rand(8, 1) + 0.5), trials=0, progress=False)
    for got, want in zip(fast(x, steps), model(x, steps), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
