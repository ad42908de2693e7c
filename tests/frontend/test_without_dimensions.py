"""Operators along a dimension take tensors without dimensions, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from felixlike.errors import UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.runtime import compile_model


class Of(nn.Module):
    """Computes a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, index, y)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x, i, y: x.cumsum(0) + y,
    "cumprod of integers": lambda x, i, y: i.cumprod(-1) + y,
    "softmax": lambda x, i, y: x.softmax(-1) + y,
    "topk": lambda x, i, y: torch.topk(x, 1)[0] + y,
    "argmax": lambda x, i, y: x.argmax(0) + y,
    "flip": lambda x, i, y: x.flip(0) + y,
    "gather": lambda x, i, y: x.gather(0, i) + y,
    "index_select": lambda x, i, y: x.index_select(0, i) + y,
    "scatter": lambda x, i, y: x.scatter(0, i, y),
    "scatter_add": lambda x, i, y: x.scatter_add(0, i, y),
    "scatter_reduce": lambda x, i, y: x.scatter_reduce(0, i, y, "mean"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_along_no_dimension(name: str) -> None:
    model, inputs = Of(FUNCTIONS[name]), (torch.tensor(3.5), torch.tensor(0), torch.tensor(2.0))
    outputs, expected = compile_model(import_model(model, inputs))(*inputs), model(*inputs)
    torch.testing.assert_close(tuple(outputs) if isinstance(expected, tuple) else outputs, expected)


def test_statistics_of_norms_are_refused() -> None:
    """TVM's importer has zeros in their place, whose shapes may be right."""
    model = Of(lambda x, i, y: torch.native_layer_norm(x.reshape(1), (1,), None, None, 1e-5)[1] + y)
    with pytest.raises(UnsupportedOperator, match=r"output 1 of aten\.native_layer_norm"):
        import_model(model, (torch.tensor(3.5), torch.tensor(0), torch.tensor(2.0)))
