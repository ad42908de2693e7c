"""Tests that outputs have PyTorch's strides, however a compiled model is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

import felixlike as fx
from felixlike.frontend.signature.layouts import inverse, memory_order


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
LAST = IMAGES.to(memory_format=torch.channels_last)

WAYS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "channels last": (lambda net, x: net.conv(x).relu(), LAST),
    "channels last, one image": (lambda net, x: net.conv(x), LAST[:1]),
    "channels first": (lambda net, x: net.conv(x), IMAGES),
    "transposed": (lambda net, x: net.linear(x).transpose(1, 2), IMAGES),
    "several": (lambda net, x: (net.conv(x), net.conv(x).sum(1), {"k": net.linear(x).permute(3, 0, 1, 2)}), LAST),
    "a permuted input": (lambda net, x: (x.permute(3, 1, 0, 2), net.linear(x)), IMAGES),
}


@pytest.mark.parametrize("name", WAYS)
def test_strides_match_pytorch_s(name: str, tmp_path: Path) -> None:
    function, x = WAYS[name]
    model = Net(function).eval()
    fast = fx.optimize(model, (x,), 0, progress=False)
    fast.save(tmp_path / "model")
    exported = torch.export.export(fast.module(), (x,))
    with torch.no_grad():
        expected = _pytree.tree_leaves(model(x))
        for call in (fast, fx.load(tmp_path / "model"), exported.module()):
            for got, want in zip(_pytree.tree_leaves(call(x)), expected, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
                assert got.stride() == want.stride()
    fakes = [node.meta["val"] for node in exported.graph.output_node().args[0]]
    assert [fake.stride() for fake in fakes] == [want.stride() for want in expected]


def test_a_view_with_gaps_keeps_the_order_of_its_dimensions() -> None:
    model = Net(lambda _, x: (x + 1)[..., ::2].transpose(2, 3)).eval()
    got = fx.optimize(model, (IMAGES,), 0, progress=False)(IMAGES)
    assert torch.equal(got, model(IMAGES))
    assert got.stride() == (54, 18, 1, 3)


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.empty(2, 3, 4), ()),
        (torch.empty(2, 3, 4).transpose(0, 2), (2, 1, 0)),
        (torch.empty(1, 3, 4, 4).to(memory_format=torch.channels_last), (0, 2, 3, 1)),
        (torch.empty(2, 1, 4).transpose(0, 1), ()),  # the position of a dimension of one element does not matter
        (torch.empty(3, 1).expand(3, 4), ()),
        (torch.empty(()), ()),
    ],
)
def test_memory_order(tensor: Tensor, order: tuple[int, ...]) -> None:
    assert memory_order(tensor) == order
    if order:
        assert tensor.permute(order).is_contiguous()
        assert tensor.permute(order).permute(inverse(order)).shape == tensor.shape
