"""Tests that factors shared by a batch are not copied, and that products are unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.models import Apply
from torch import nn

import felixlike as fx
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "both of a batch": lambda x: x @ x.mT,
    "second shared": lambda x: x @ x[:1].mT.expand(5, -1, -1),
    "first shared": lambda x: x[:1].expand(5, -1, -1) @ x.mT,
    "both shared": lambda x: x[:1].expand(5, -1, -1) @ x[1:2].mT.expand(5, -1, -1),
    "of rows": lambda x: x[:, :1].expand(-1, 7, -1) @ x.mT,
}


@pytest.mark.parametrize("name", _PRODUCTS)
def test_products_are_unchanged(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 7, 13)
    output = compile_model(import_model(Apply(_PRODUCTS[name]), (x,)))(x)
    torch.testing.assert_close(output, _PRODUCTS[name](x), rtol=1e-4, atol=1e-5)


def test_weights_of_a_transposed_input_are_stored_once() -> None:
    model = nn.Sequential(Apply(lambda x: x.transpose(0, 1)), nn.Linear(16, 24)).eval()
    tasks = fx.extract_tasks(model, (torch.randn(1, 53, 16),))
    shapes = [[int(e) for e in p.shape] for task in tasks for p in task.module["main"].params]
    assert any(sorted(shape) == [16, 24] for shape in shapes)
    assert not any({16, 24, 53} <= set(shape) for shape in shapes)
