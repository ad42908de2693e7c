"""Inputs of kernels and networks with dynamic sizes may begin at any element."""

from __future__ import annotations

import torch
from support import dynamic_operators as operators
from torch import Tensor, nn

import felixlike as fx
from felixlike import dynamic


def _shifted(tensor: Tensor, offset: int) -> Tensor:
    """Return a copy that begins `offset` elements behind an aligned address."""
    return torch.empty(tensor.numel() + 16)[offset : offset + tensor.numel()].view(tensor.shape).copy_(tensor)


def test_a_kernel() -> None:
    dims = [fx.Dim("B", [1, 2]), fx.Dim("T", range(1, 17))]
    kernel = dynamic.compile(operators.dense_of_batch(16, 40), dims, measure=False)
    x, w, r = torch.randn(2, 13, 16), torch.randn(40, 16), torch.randn(2, 13, 40)
    expected = kernel(x, w, r)
    for offset in (1, 4, 7):
        assert torch.equal(kernel(*(_shifted(tensor, offset) for tensor in (x, w, r))), expected)
    assert torch.equal(kernel(torch.stack([x, x], -1)[..., 0], w, r), expected)


def test_a_network_of_batches() -> None:
    """A batch that is cut into parts reads each of them in place."""
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()).eval()
    x = torch.randn(7, 3, 9, 9)
    fast = fx.optimize(model, ((fx.Dim("B", range(1, 8)), 3, 9, 9),), trials=0, progress=False)
    expected = fast(x)
    for offset in (1, 4, 7):
        assert torch.equal(fast(_shifted(x, offset)), expected)
    torch.testing.assert_close(expected, model(x), rtol=1e-4, atol=1e-5)
