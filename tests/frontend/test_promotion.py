"""Tests that operands are promoted as in PyTorch, with equal values and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply

from felixlike.errors import UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_OF_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "times a fraction": lambda x: x * 2.5,
    "divided": lambda x: x / 2,
    "divided whole": lambda x: x // 2,
    "divided towards 0": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % 3,
    "power": lambda x: x**2,
    "sigmoid": lambda x: x.sigmoid(),
    "root": lambda x: x.abs().sqrt(),
    "running sum": lambda x: x.cumsum(-1),
    "running product": lambda x: x.clamp(min=-1, max=1).cumprod(-1),
    "sum": lambda x: x.sum(1),
    "sum as floats": lambda x: x.sum(0, dtype=torch.float32),
    "with floats": lambda x: x + torch.arange(7, dtype=torch.float32),
    "chosen": lambda x: torch.where(x > 0, x, 0.5),
    "bounded": lambda x: x.clamp(min=0),
}

_OF_BOOLEANS: dict[str, Callable[[Any], Any]] = {
    "or, with a factor": lambda x: torch.add(x, x.flip(0), alpha=2),
    "sum": lambda x: x.sum(1),
    "running sum": lambda x: x.cumsum(1),
    "and": lambda x: x * x.flip(0),
    "or": lambda x: x + x.flip(0),
    "times a number": lambda x: x * 3,
    "exponential": lambda x: x.exp(),
    "equal": lambda x: x == x.flip(0),
    "unequal": lambda x: x != x.flip(0),
    "less": lambda x: x < x.flip(0),
    "false": lambda x: x == False,  # noqa: E712
    "larger": lambda x: torch.maximum(x, x.flip(0)),
    "smaller": lambda x: torch.minimum(x, x.flip(0)),
    "largest": lambda x: x.amax(-1),
    "smallest": lambda x: x.amin((0, 1)),
    "largest of all": lambda x: x.max(),
    "smallest of all": lambda x: x.min(),
    "first largest": lambda x: torch.add(*x.max(1)),
    "first smallest": lambda x: torch.add(*x.min(0, keepdim=True)),
    "not a number": lambda x: torch.isnan(x) | x,
    "sign": lambda x: torch.sign(x) & x.flip(0),
}

_OF_BYTES: dict[str, Callable[[Any], Any]] = {
    "negative": lambda x: -x,
    "plus a negative": lambda x: x + (-1),
    "from a negative": lambda x: -5 - x,
    "times a large number": lambda x: x * 300,
    "above a large number": lambda x: x > 300,
    "limits": lambda x: x.clamp(-3, 9),
    "quotient of floats": lambda x: x / 300,
    "sign": lambda x: torch.sign(x) * 2,
    "not a number": lambda x: torch.isnan(x) | (x > 3),
    "bits": lambda x: x & 511,
}


def _assert_matches_pytorch(function: Callable[[Any], Any], x: torch.Tensor) -> None:
    output, expected = compile_model(import_model(Apply(function), (x,)))(x), function(x)
    assert output.dtype == expected.dtype
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", _OF_BYTES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_small_integers_wrap(name: str, dtype: torch.dtype) -> None:
    _assert_matches_pytorch(_OF_BYTES[name], torch.arange(0, 21).reshape(3, 7).to(dtype))


def test_integer_powers_are_computed_by_pytorch() -> None:
    _assert_matches_pytorch(lambda x: (x + 1) ** x.abs() + 2 ** x.abs(), torch.arange(-10, 11).reshape(3, 7))


@pytest.mark.parametrize("name", _OF_INTEGERS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_operands_are_promoted(name: str, dtype: torch.dtype) -> None:
    _assert_matches_pytorch(_OF_INTEGERS[name], torch.arange(-10, 11).reshape(3, 7).to(dtype))


@pytest.mark.parametrize("name", _OF_BOOLEANS)
def test_boolean_operands_are_promoted(name: str) -> None:
    _assert_matches_pytorch(_OF_BOOLEANS[name], torch.arange(21).reshape(3, 7) % 3 > 0)


def test_empty_tensors_are_left_out_of_concatenations() -> None:
    """Rotary embeddings concatenate the part of a head that they leave out, which most models do not have."""
    x = torch.linspace(-2, 2, 24).reshape(2, 6, 2)
    for function in (
        lambda x: torch.cat([x * 2, x[..., 2:]], -1),
        lambda x: torch.cat([x[:, 6:].int(), x[:, :1] + 1, x], 1),
        lambda x: torch.cat([x[:0], x[:0] + 1]),
    ):
        _assert_matches_pytorch(function, x)
    imported = import_model(Apply(lambda x: torch.cat([x * 2, x[..., 2:]], -1)), (x,))
    for task in imported.tasks:
        assert "T.int64(0))" not in task.module.script()


def test_more_operators() -> None:
    x, at = torch.linspace(-2, 2, 24).reshape(2, 6, 2), torch.tensor([[[0, 1]], [[4, 0]]])
    _assert_matches_pytorch(lambda x: torch.hypot(x, x + 1), x)
    _assert_matches_pytorch(lambda x: torch.nn.functional.group_norm(x, 3), x)
    _assert_matches_pytorch(lambda x: torch.nn.functional.group_norm(x, 2, weight=torch.arange(6.0)), x)
    _assert_matches_pytorch(lambda x: torch.cat([torch.tensor([]), x, x + 1], -2), x)
    _assert_matches_pytorch(lambda x: torch.cat([torch.tensor([]), (x > 0).int()], -2), x)
    _assert_matches_pytorch(lambda x: x.scatter_add(1, at, x), x)
    with pytest.raises(UnsupportedOperator, match="special_bessel_j0"):
        import_model(Apply(torch.special.bessel_j0), (x,))


_WITH_FACTORS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: torch.add(x, x.flip(0), alpha=3),
    "difference": lambda x: torch.sub(x, x.flip(0), alpha=3),
    "reversed difference": lambda x: torch.rsub(x, x.flip(0), alpha=3),
    "sum with a number": lambda x: torch.add(x, 2, alpha=3),
    "sum with integers": lambda x: torch.add(x.double(), torch.arange(7), alpha=0.1),
    "in place": lambda x: x.clone().add_(x.flip(0), alpha=2),
}


@pytest.mark.parametrize("name", _WITH_FACTORS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_sums_have_factors(name: str, dtype: torch.dtype) -> None:
    _assert_matches_pytorch(_WITH_FACTORS[name], torch.arange(-10, 11).reshape(3, 7).to(dtype))
