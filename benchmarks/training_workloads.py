"""The workloads whose measurements the shipped cost model learns from.

Plain layers in sizes that occur in networks, none of them taken from the networks and subgraphs that benchmarks
report on: the split between training and evaluation is by workload. Each is a function of nothing giving (module,
inputs).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class _Product(nn.Module):
    """a · b, or a · bᵀ."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ (b.transpose(-1, -2) if self.transposed else b)


class _Residual(nn.Module):
    """relu(convolution(x) + y), as in residual blocks."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(self.convolution(x) + y)


_DENSE = (
    (1, 512, 1024), (16, 320, 640), (48, 384, 1536), (64, 512, 512), (96, 1024, 256), (100, 768, 768),
    (128, 256, 1000), (160, 640, 320), (196, 192, 768), (256, 512, 2048), (7, 300, 700), (384, 96, 384),
)  # fmt: skip
_BATCHED = ((8, 48, 64, 48, True), (8, 48, 48, 64, False), (12, 96, 64, 96, True), (6, 197, 64, 197, False))
# channels in, channels out, size, kernel, stride, groups
_CONVOLUTIONS = (
    (32, 48, 40, 3, 1, 1), (48, 48, 48, 3, 1, 1), (80, 80, 28, 3, 1, 1), (96, 192, 28, 3, 2, 1),
    (160, 160, 14, 3, 1, 1),
    (320, 320, 7, 3, 1, 1), (3, 32, 160, 3, 2, 1), (3, 48, 192, 7, 2, 1), (24, 64, 56, 5, 1, 1), (192, 48, 28, 1, 1, 1),
    (96, 384, 14, 1, 1, 1), (480, 112, 14, 1, 1, 1), (128, 128, 28, 1, 2, 1), (640, 160, 7, 1, 1, 1),
    (96, 96, 56, 3, 1, 96), (192, 192, 28, 3, 2, 192), (384, 384, 14, 5, 1, 384), (64, 64, 28, 3, 1, 4),
)  # fmt: skip
_ROWS = ((384, 96), (64, 512), (1000, 160), (197, 384))


def workloads() -> Iterator[tuple[str, nn.Module, tuple[Tensor, ...]]]:
    """(name, module in eval mode, inputs), always in the same order with the same random weights."""
    torch.manual_seed(0)
    for m, k, n in _DENSE:
        layer = nn.Sequential(nn.Linear(k, n), nn.ReLU() if n % 64 == 0 else nn.Identity())
        yield f"dense_{m}x{k}x{n}", layer.eval(), (torch.randn(m, k),)
    for batch, m, k, n, transposed in _BATCHED:
        b = torch.randn(batch, n, k) if transposed else torch.randn(batch, k, n)
        name = f"bmm_{batch}x{m}x{k}x{n}{'_nt' if transposed else ''}"
        yield name, _Product(transposed=transposed).eval(), (torch.randn(batch, m, k), b)
    for i, (c, o, size, kernel, stride, groups) in enumerate(_CONVOLUTIONS):
        convolution = nn.Conv2d(c, o, kernel, stride, kernel // 2, groups=groups)
        x = torch.randn(1, c, size, size)
        name = f"conv_{c}x{size}_{o}_k{kernel}s{stride}g{groups}"
        if i % 3 == 2:
            yield f"{name}_residual", _Residual(convolution).eval(), (x, torch.randn_like(convolution(x)))
        else:
            yield name, nn.Sequential(convolution, nn.ReLU()).eval(), (x,)
    for rows, columns in _ROWS:
        yield f"softmax_{rows}x{columns}", nn.Softmax(-1).eval(), (torch.randn(rows, columns),)
        yield f"layer_norm_{rows}x{columns}", nn.LayerNorm(columns).eval(), (torch.randn(rows, columns),)
    yield "max_pool_48x56", nn.MaxPool2d(3, 2, 1).eval(), (torch.randn(1, 48, 56, 56),)
    yield "avg_pool_96x28", nn.AvgPool2d(2, 2).eval(), (torch.randn(1, 96, 28, 28),)
    yield "global_pool_320x7", nn.AdaptiveAvgPool2d(1).eval(), (torch.randn(1, 320, 7, 7),)
