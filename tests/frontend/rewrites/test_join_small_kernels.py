"""Tests for joining consecutive small kernels. Other kernels are not changed."""

from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error


def _two_ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors, of which the second depends on the first."""
    first, second = (x * 2.0).chunk(2, -1)
    state = torch.sigmoid(first) + torch.tanh(second)
    return state, torch.tanh(state) * first


def _read_between(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute two elementwise kernels with a sum between them that reads the first one's output."""
    scaled = torch.sigmoid(x)
    total = scaled.sum(-1, keepdim=True)
    return scaled, scaled * total


def _task_names(model: Any, *inputs: torch.Tensor) -> list[str]:
    return [task.name for task in import_model(model, inputs).tasks]


@pytest.mark.parametrize("shape", [(1, 64), (3, 34), (2, 5, 2)])
def test_a_computation_with_two_outputs_is_one_kernel(shape: tuple[int, ...]) -> None:
    model, x = Apply(_two_ends), torch.randn(shape)
    imported = import_model(model, (x,))
    assert sum(task.weight for task in imported.tasks) == 1
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_large_kernels_are_not_joined() -> None:
    assert len(_task_names(Apply(_two_ends), torch.randn(64, 4096))) > 1


def test_reductions_are_not_joined() -> None:
    model, x = Apply(_read_between), torch.randn(4, 32)
    imported = import_model(model, (x,))
    assert sum(task.weight for task in imported.tasks) >= 2
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


class _Steps(nn.Module):
    """A cell that is called for each of 5 steps."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = kind(16, 32)

    def forward(self, x: Any) -> Any:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_a_recurrent_cell_is_two_products_and_one_kernel(kind: Any) -> None:
    torch.manual_seed(0)
    model, x = _Steps(kind).eval(), torch.randn(2, 5, 16)
    imported = import_model(model, (x,))
    kernels = {word: sum(t.weight for t in imported.tasks if word in t.name) for word in ("sigmoid", "matmul", "")}
    assert kernels["sigmoid"] == 5
    assert kernels["matmul"] <= 2 * 5
    assert kernels[""] <= 4 * 5  # the others read the inputs of a step
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_the_last_step_is_not_fused_into_the_stack() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(64, 64, batch_first=True, bidirectional=True).double().eval()
    x = torch.randn(8, 7, 64, dtype=torch.float64)
    imported = import_model(model, (x,))
    assert [task.weight for task in imported.tasks if task.name == "concatenate"] == [2]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


def test_lookups_between_small_kernels() -> None:
    """The farthest of some points, as in PointNet++: the indices of a lookup are a constant and a kernel's result."""

    def farthest(x: torch.Tensor) -> Any:
        rows, places = torch.arange(2), [torch.zeros(2, dtype=torch.long)]
        for _ in range(3):
            distance = (x - x[rows, places[-1]][:, None]).square().sum(-1)
            places.append(distance.argmax(-1))
        chosen = torch.stack(places, 1)
        return x[rows[:, None], chosen] * 2, chosen

    model, x = Apply(farthest), torch.randn(2, 20, 3)
    for got, want in zip(compile_model(import_model(model, (x,)))(x), model(x), strict=True):
        torch.testing.assert_close(got, want)
