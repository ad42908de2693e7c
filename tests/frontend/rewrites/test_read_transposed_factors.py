"""Tests that products read transposed factors in place."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error


class FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.function(a, b)


@pytest.mark.parametrize(
    ("function", "a", "b"),
    [
        pytest.param(lambda a, b: a @ b.transpose(-1, -2), (3, 7, 5), (3, 4, 5), id="second"),
        pytest.param(lambda a, b: a.transpose(-1, -2) @ b, (5, 7), (5, 4), id="first"),
        pytest.param(lambda a, b: a.T @ b.T, (5, 7), (4, 5), id="both"),
        pytest.param(lambda a, b: a.transpose(1, 2) @ b.permute(0, 2, 3, 1), (1, 7, 3, 5), (1, 4, 3, 5), id="heads"),
        pytest.param(lambda a, b: a @ b.transpose(-1, -2), (7, 5), (3, 4, 5), id="fewer dimensions"),
        pytest.param(lambda a, b: torch.relu(a @ b.T + 1), (7, 5), (4, 5), id="epilogue"),
    ],
)
def test_a_product_of_transposed_factors_is_one_task(
    function: Callable[..., Tensor], a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    model, inputs = FunctionModule(function).eval(), (torch.randn(a), torch.randn(b))
    imported = import_model(model, inputs)
    assert len(imported.tasks) == 1
    assert max_relative_error(compile_model(imported), model, inputs).error < 1e-5


@pytest.mark.parametrize(
    ("function", "a", "b"),
    [
        pytest.param(lambda a, b: a @ b.T + b.T.sum(), (7, 5), (4, 5), id="read twice"),
        pytest.param(lambda a, b: a @ b.transpose(-1, -2), (3, 7, 5), (1, 4, 5), id="one for all"),
        pytest.param(lambda a, b: a.transpose(-1, -2) @ b.transpose(-1, -2), (2, 1, 1, 7), (3, 4, 1), id="ones"),
        pytest.param(lambda a, b: a.transpose(1, 2) @ b.permute(0, 2, 3, 1), (2, 7, 3, 5), (2, 4, 3, 5), id="batch"),
    ],
)
def test_factors_with_other_readers_or_repetition_are_transposed(
    function: Callable[..., Tensor], a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    model, inputs = FunctionModule(function).eval(), (torch.randn(a), torch.randn(b))
    imported = import_model(model, inputs)
    assert len(imported.tasks) > 1
    assert max_relative_error(compile_model(imported), model, inputs).error < 1e-5


def test_float16_factors_are_not_transposed() -> None:
    model = FunctionModule(lambda a, b: a @ b.transpose(-1, -2)).eval()
    inputs = (torch.randn(3, 7, 5).half(), torch.randn(3, 4, 5).half())
    imported = import_model(model, inputs)
    assert not [task.name for task in imported.tasks if "transpose" in task.name]
    assert max_relative_error(compile_model(imported), model, inputs).error < 1e-2
