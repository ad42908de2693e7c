"""Tests that values broadcast over a larger tensor are computed once and passed to it without a copy."""

from __future__ import annotations

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model


class _Gated(nn.Module):
    """A squeeze-and-excitation block between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        gate: Tensor = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
        result: Tensor = self.last(y * gate)
        return result


@pytest.mark.parametrize("batch", [1, 3])
def test_gates_are_computed_once(batch: int) -> None:
    torch.manual_seed(0)
    model, x = _Gated().eval(), torch.randn(batch, 8, 9, 10)
    imported = import_model(model, (x,))
    names = [task.name for task in imported.tasks]
    assert "multiply" in names
    assert any(name.endswith("sigmoid") for name in names)
    assert not any("gate" in name for name in names)
    torch.testing.assert_close(compile_model(imported)(x), model(x))


def _scaled(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).relu() * (x[:1] @ v).tanh()


def test_the_product_with_the_larger_output_keeps_its_fusion() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(20, 8), torch.randn(8, 24), torch.randn(8, 24)
    imported = import_model(Apply(_scaled), inputs)
    names = [task.name for task in imported.tasks]
    assert any("relu" in name and "multiply" in name for name in names)
    assert any(name.endswith("tanh") for name in names)
    torch.testing.assert_close(compile_model(imported)(*inputs), _scaled(*inputs))


def test_biases_and_halves_stay_fused() -> None:
    inputs = torch.randn(6, 8), torch.randn(8, 24), torch.randn(24), torch.randn(2, 8)
    model = Apply(lambda x, w, b, y: (x @ w + b).view(3, 2, 24) * (y @ w))
    imported = import_model(model, inputs)
    assert sum(task.weight for task in imported.tasks) == 2
    torch.testing.assert_close(compile_model(imported)(*inputs), model(*inputs))
