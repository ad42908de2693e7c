"""Tests for tensor guards with torch's check and without it."""

from __future__ import annotations

import pytest
import torch
from support.models import Apply
from torch import Tensor

from felixlike.frontend import import_model
from felixlike.runtime import compile_model
from felixlike.runtime.tensor_guards import likeness, never


def test_tensors_of_another_kind_do_not_pass_the_guard() -> None:
    x, y = torch.randn(3, 4), torch.ones(2, dtype=torch.int64)
    alike = likeness([x, y])
    assert alike(x, y)
    assert alike(torch.zeros(3, 4), y + 1)
    unlike: list[tuple[object, object]] = [
        (torch.randn(4, 3), y),
        (torch.randn(4, 3).t(), y),
        (x.double(), y),
        (x, y.int()),
        (x.clone().requires_grad_(), y),
        (torch._neg_view(x), y),
        (x.to("meta"), y),
        (x.to_sparse(), y),
        (torch.nn.Parameter(x), y),
        (x.numpy(), y),
        (None, y),
    ]
    for first, second in unlike:
        assert not alike(first, second)
    with torch.inference_mode():
        assert not alike(x, y)
    results: list[bool] = []

    def record(x: Tensor) -> Tensor:
        results.append(alike(x, y))
        return x

    torch.vmap(record)(x[None])
    torch.func.functionalize(record)(x)
    assert results == [False, False]


def test_the_guard_of_no_tensors_never_passes() -> None:
    assert likeness([]) is never
    assert not never(torch.ones(1))


def test_inputs_are_checked_without_torchs_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch's TensorGuards, every call checks its inputs in Python."""
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    x = torch.randn(3, 4)
    assert likeness([x]) is never
    compiled = compile_model(import_model(Apply(lambda x: x + 1), (3, 4)))
    for tensor in (x, x.t().contiguous().t(), x):
        assert torch.equal(compiled(tensor), tensor + 1)
