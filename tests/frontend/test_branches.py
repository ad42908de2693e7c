"""Tests that both branches of `torch.cond` compute what PyTorch does. Verification compares only the one that the
example inputs take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor

from felixlike.errors import UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

torch.manual_seed(0)
_FLOATS, _INTEGERS = torch.randn(4, 6), torch.arange(-12, 12).reshape(4, 6)

_Branch = Callable[[Tensor], Tensor]

_BRANCHES: dict[str, tuple[_Branch, _Branch, Tensor]] = {
    "an operator of both": (lambda x: x * 2, lambda x: x - 1, _FLOATS),
    "a dtype of its own": (lambda x: x * 2.0, lambda x: x * 2.5, _INTEGERS),
    "sums of booleans": (lambda x: (x > 0).sum(1).float(), lambda x: x.sum(1).float(), _INTEGERS),
    "factors": (torch.selu, lambda x: x.abs() * 2, _FLOATS),
    "truth of numbers": (lambda x: x.any(1).float(), lambda x: x.amax(1).float(), _INTEGERS - 20),
    "a falling range": (lambda x: x + torch.arange(6, 0, -1), lambda x: x * 2, _FLOATS),
    "float64": (lambda x: (x / 3) @ x.t(), lambda x: x @ x.t(), _FLOATS.double()),
    "float16": (lambda x: (x * 30000).sum(1) / 30000, lambda x: x.sum(1), _FLOATS.abs().half()),
    "bfloat16": (lambda x: (x @ x.t()).softmax(1)[:, :1] + x, lambda x: x.softmax(1), _FLOATS.bfloat16()),
    "branches of branches": (
        lambda x: torch.cond(x.amax() > 1, lambda x: x * 1.5, lambda x: x * 0.5, (x,)),
        lambda x: x + 0.5,
        _INTEGERS,
    ),
}


def _chosen(first: _Branch, second: _Branch) -> Apply:
    """Return a model that computes the first branch if a number is positive, else the second."""
    return Apply(lambda number, x: torch.cond(number.sum() > 0, first, second, (x,)) * 3)


@pytest.mark.parametrize("name", _BRANCHES)
def test_both_branches_match_pytorch(name: str) -> None:
    first, second, x = _BRANCHES[name]
    model = _chosen(first, second)
    compiled: Any = compile_model(import_model(model, (-torch.ones(1), x)))
    for number in (torch.ones(1), -torch.ones(1)):
        wanted = model(number, x)
        error: Any = {"rtol": 0.02, "atol": 0.02} if x.dtype is torch.bfloat16 else {}
        torch.testing.assert_close(compiled(number, x), wanted, **error)


def test_operators_of_branches_are_refused_by_name() -> None:
    model = _chosen(torch.special.i0, lambda x: x * 2)
    with pytest.raises(UnsupportedOperator, match="i0"):
        import_model(model, (torch.ones(1), _FLOATS))
