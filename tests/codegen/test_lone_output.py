"""A lone output comes as it is; anything else as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike import _tvm, runtime
from felixlike.frontend import import_model

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Giving(nn.Module):
    """A layer whose output `form` makes something of."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 16)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(torch.relu(self.layer(x)))


def compiled(form: Any) -> tuple[runtime.Compiled, Any]:
    """The model compiled, and what PyTorch says."""
    model = Giving(form).eval()
    return runtime.compile_model(import_model(model, (X,), "cpu")), model(X)


def returned(model: runtime.Compiled) -> Any:
    """The type of what the lowered main returns."""
    return model.lowered["main"].ret_ty


@pytest.mark.parametrize("form", [lambda y: y, lambda y: [y], lambda y: y.reshape(4, 4, 4), lambda y: {"a": y}])
def test_one_tensor(form: Any) -> None:
    model, wanted = compiled(form)
    assert isinstance(returned(model), _tvm.relax.TensorType)
    torch.testing.assert_close(model(X), wanted)


def test_a_reshape_at_the_end_stays_a_view() -> None:
    model, _ = compiled(lambda y: y.reshape(4, 4, 4))
    kernels = [f for f in model.lowered.functions.values() if isinstance(f, _tvm.PrimFunc)]
    assert len(kernels) == 1


def test_several_tensors_stay_together() -> None:
    model, wanted = compiled(lambda y: (y, y + 1))
    assert isinstance(returned(model), _tvm.relax.TupleType)
    torch.testing.assert_close(model(X), wanted)
