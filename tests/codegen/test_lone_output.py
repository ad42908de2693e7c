"""A single output is returned as a tensor, and other outputs in their structure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike import _tvm, runtime
from felixlike.frontend import import_model

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class LinearThen(nn.Module):
    """A layer whose output is passed to `form`."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 16)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(torch.relu(self.layer(x)))


def compiled(form: Any) -> tuple[runtime.Compiled, Any]:
    """Return the compiled model and PyTorch's result."""
    model = LinearThen(form).eval()
    return runtime.compile_model(import_model(model, (X,), "cpu")), model(X)


def return_type(model: runtime.Compiled) -> Any:
    """Return the type that the lowered main function returns."""
    return model.lowered["main"].ret_ty


@pytest.mark.parametrize("form", [lambda y: y, lambda y: [y], lambda y: y.reshape(4, 4, 4), lambda y: {"a": y}])
def test_a_single_output_is_returned_as_a_tensor(form: Any) -> None:
    model, expected = compiled(form)
    assert isinstance(return_type(model), _tvm.relax.TensorType)
    torch.testing.assert_close(model(X), expected)


def test_a_final_reshape_remains_a_view() -> None:
    model, _ = compiled(lambda y: y.reshape(4, 4, 4))
    kernels = [f for f in model.lowered.functions.values() if isinstance(f, _tvm.PrimFunc)]
    assert len(kernels) == 1


def test_several_outputs_are_returned_as_a_tuple() -> None:
    model, expected = compiled(lambda y: (y, y + 1))
    assert isinstance(return_type(model), _tvm.relax.TupleType)
    torch.testing.assert_close(model(X), expected)
