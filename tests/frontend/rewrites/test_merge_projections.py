"""Tests for joining products of one input with constants if their outputs are permuted anyway."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error


class Projections(nn.Module):
    """Linear layers of one input. With `heads`, each output is split into two heads."""

    def __init__(self, *widths: int, bias: bool = True, heads: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, width, bias=bias) for width in widths)
        self.heads = heads

    def forward(self, x: Tensor) -> Any:
        outputs = [layer(x) for layer in self.layers]
        return [y.view(*y.shape[:-1], 2, -1).transpose(1, 2) * 2 if self.heads else y.relu() for y in outputs]


def right_factor_shapes(imported: Any) -> list[list[int]]:
    """Return the shape of the second factor of every product that a call computes."""
    matmuls = [(t.weight, t.module["main"].params[1].shape) for t in imported.tasks if "matmul" in t.name]
    return [[int(n) for n in shape] for weight, shape in matmuls for _ in range(int(weight))]


@pytest.mark.parametrize("bias", [True, False])
def test_queries_keys_and_values_are_one_product(bias: bool) -> None:
    model, x = Projections(8, 8, 4, bias=bias).eval(), torch.randn(2, 5, 6)
    imported = import_model(model, (x,))
    assert right_factor_shapes(imported) == [[6, 20]]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_products_without_permutation_are_not_joined() -> None:
    """Each product has a relu in its kernel. Joining them would add copies of three parts."""
    model, x = Projections(8, 8, 4, heads=False).eval(), torch.randn(2, 5, 6)
    imported = import_model(model, (x,))
    assert sorted(right_factor_shapes(imported)) == [[6, 4], [6, 8], [6, 8]]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


class Separate(nn.Module):
    """Two products of different inputs, and one product of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Any:
        return self.one(x).transpose(0, 1), self.other(y).transpose(0, 1), (x @ w).transpose(0, 1)


def test_products_of_different_inputs_are_not_joined() -> None:
    model, inputs = Separate().eval(), (torch.randn(4, 6), torch.randn(4, 6), torch.randn(6, 8))
    imported = import_model(model, inputs)
    assert right_factor_shapes(imported) == [[6, 8]] * 3
    assert max_relative_error(compile_model(imported), model, inputs).error < 1e-5
