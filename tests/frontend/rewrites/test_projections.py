"""Products of one input with constants become one where their parts are moved anyway."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error


class Projections(nn.Module):
    """Linear layers of one input, split into two heads each where `heads`."""

    def __init__(self, *widths: int, bias: bool = True, heads: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, width, bias=bias) for width in widths)
        self.heads = heads

    def forward(self, x: Tensor) -> Any:
        found = [layer(x) for layer in self.layers]
        return [y.view(*y.shape[:-1], 2, -1).transpose(1, 2) * 2 if self.heads else y.relu() for y in found]


def products(imported: Any) -> list[list[int]]:
    """Shapes of the matrices that something is multiplied with, one for each call."""
    matmuls = [(t.weight, t.module["main"].params[1].shape) for t in imported.tasks if "matmul" in t.name]
    return [[int(n) for n in shape] for weight, shape in matmuls for _ in range(int(weight))]


@pytest.mark.parametrize("bias", [True, False])
def test_queries_keys_and_values_are_one_product(bias: bool) -> None:
    model, x = Projections(8, 8, 4, bias=bias).eval(), torch.randn(2, 5, 6)
    imported = import_model(model, (x,))
    assert products(imported) == [[6, 20]]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_products_whose_elements_stay_are_left_apart() -> None:
    """Each has its own relu in its kernel; of one product, three parts would have to be copied."""
    model, x = Projections(8, 8, 4, heads=False).eval(), torch.randn(2, 5, 6)
    imported = import_model(model, (x,))
    assert sorted(products(imported)) == [[6, 4], [6, 8], [6, 8]]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


class Apart(nn.Module):
    """Two products of different inputs, and one of matrices that are inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Any:
        return self.one(x).transpose(0, 1), self.other(y).transpose(0, 1), (x @ w).transpose(0, 1)


def test_other_products_are_left_apart() -> None:
    model, inputs = Apart().eval(), (torch.randn(4, 6), torch.randn(4, 6), torch.randn(6, 8))
    imported = import_model(model, inputs)
    assert products(imported) == [[6, 8]] * 3
    assert max_relative_error(compile_model(imported), model, inputs).error < 1e-5
