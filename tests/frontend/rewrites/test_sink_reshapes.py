"""Tests for moving reshapes behind elementwise operators of a contraction's output, and for joining reshapes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply, bert
from torch import Tensor, nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error

F = torch.nn.functional


class Residual(nn.Module):
    """x + gelu(W · x) of a three-dimensional x, which the linear layer flattens."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(x))


def test_a_residual_and_an_activation_are_fused_with_the_product() -> None:
    model, x = Residual().eval(), torch.randn(2, 5, 6)
    imported = import_model(model, (x,))
    assert [task.name for task in imported.tasks] == ["fused_matmul_add_gelu_add1"]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "a_number": (lambda x, w: F.relu((x @ w).reshape(2, 3, 4) * 2.0), ((6, 5), (5, 4)), 1),
    "a_row": (lambda x, w, b: (x @ w).reshape(2, 3, 4) + b, ((6, 5), (5, 4), (4,)), 2),
    "read_twice": (lambda x, w: ((y := (x @ w).reshape(2, 12)), F.relu(y)), ((6, 5), (5, 4)), 2),
    "read_four_times_within": (
        lambda x, w: 0.5 * (y := (x @ w).reshape(2, 12)) * (1 + torch.tanh(0.8 * (y + 0.04 * y**3))),
        ((6, 5), (5, 4)),
        1,
    ),
    "read_twice_within_and_by_a_product": (
        lambda x, w, v: (torch.sigmoid(y := (x @ w).reshape(2, 12)) + y) @ v + (y @ v),
        ((6, 5), (5, 4), (12, 3)),
        4,
    ),
    "no_contraction": (lambda x: F.relu(torch.softmax(x, -1).reshape(2, 12)), ((6, 4),), 2),
    "two_products": (
        lambda x, w, y, z: (x @ w).reshape(2, 12) * torch.bmm(y, z).reshape(2, 12),
        ((6, 5), (5, 4), (2, 3, 7), (2, 7, 4)),
        2,
    ),
    "a_product_after_a_reshaped_one": (
        lambda x, w, y, z: torch.bmm(y, z) - (x @ w).reshape(2, 3, 4),
        ((6, 5), (5, 4), (2, 3, 7), (2, 7, 4)),
        2,
    ),
    "one_after_the_other": (lambda x: torch.softmax(x, -1).reshape(2, 12).reshape(4, 6).reshape(6, 4), ((6, 4),), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_tasks_and_the_outputs(name: str) -> None:
    function, shapes, tasks = CASES[name]
    model, inputs = Apply(function), tuple(torch.randn(shape) for shape in shapes)
    imported = import_model(model, inputs)
    assert len(imported.tasks) == tasks
    assert max_relative_error(compile_model(imported), model, inputs).error < 1e-5


def test_calls_of_a_transformers_layer() -> None:
    """One layer of BERT with its embeddings makes 17 calls. TVM's passes alone give 23."""
    model, inputs = bert(layers=1, hidden=32, length=8)
    imported = import_model(model, inputs)
    assert sum(task.weight for task in imported.tasks) == 17
    assert max_relative_error(compile_model(imported), model, inputs).error < 1e-5
