"""Tests for attention: its softmax is one kernel, and fully masked rows give 0 as in PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.models import Apply
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from felixlike.frontend import import_model
from felixlike.runtime import compile_model


def _softmax(x: Tensor) -> Tensor:
    output: Tensor = torch.ops.aten._safe_softmax(x, 1)
    return output


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 7, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)


def test_the_softmax_of_attention_is_one_kernel() -> None:
    imported = import_model(Apply(scaled_dot_product_attention), _inputs())
    assert [task.name for task in imported.tasks if "softmax" in task.name] == ["softmax"]
    assert not any("isinf" in task.name or "logical" in task.name for task in imported.tasks)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_matches_pytorch(masked: bool) -> None:
    q, k, v = _inputs()
    mask = torch.ones(7, 5, dtype=torch.bool)
    if masked:
        mask[2], mask[3, 1:] = False, False
    model = Apply(lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask))
    fast = compile_model(import_model(model, (q, k, v)))
    torch.testing.assert_close(fast(q, k, v), model(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_softmax_of_non_finite_values(dtype: torch.dtype) -> None:
    x = torch.tensor([[-torch.inf] * 4, [0, 1, -torch.inf, 2], [torch.nan, 0, 1, 2], [torch.inf, 0, 1, 2]], dtype=dtype)
    x = torch.stack([x.T, torch.full_like(x.T, torch.finfo(dtype).min)])
    fast = compile_model(import_model(Apply(_softmax), (x,)))
    torch.testing.assert_close(fast(x), _softmax(x), equal_nan=True)
