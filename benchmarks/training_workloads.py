"""The workloads whose measurements the shipped cost model learns from.

Plain layers in sizes that occur in networks, none of them taken from the networks and subgraphs that benchmarks
report on: the split between training and evaluation is by workload. Each is a function of nothing giving (module,
inputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from felixlike import tvmlib
from felixlike.testing.models import Product


class _Residual(nn.Module):
    """relu(convolution(x) + y), as in residual blocks."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(self.convolution(x) + y)


class _ChannelsLast(nn.Module):
    """A convolution between layers that keep channels last, as in networks where all do."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.convolution(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


_DENSE = (
    (1, 512, 1024), (16, 320, 640), (48, 384, 1536), (64, 512, 512), (96, 1024, 256), (100, 768, 768),
    (128, 256, 1000), (160, 640, 320), (196, 192, 768), (256, 512, 2048), (7, 300, 700), (384, 96, 384),
    (32, 768, 768), (50, 640, 2560), (128, 2048, 512), (24, 256, 256), (80, 1280, 320), (224, 384, 1152),
    (113, 300, 520), (512, 256, 256), (77, 640, 640), (200, 1024, 1024),
)  # fmt: skip
_BATCHED = (
    (8, 48, 64, 48, True), (8, 48, 48, 64, False), (12, 96, 64, 96, True), (6, 197, 64, 197, False),
    (16, 128, 64, 128, False), (16, 100, 32, 100, True), (4, 256, 64, 256, False), (1, 384, 384, 384, False),
    (2, 160, 320, 240, False), (12, 64, 96, 64, True),
)  # fmt: skip
# channels in, channels out, size, kernel, stride, groups
_CONVOLUTIONS = (
    (32, 48, 40, 3, 1, 1), (48, 48, 48, 3, 1, 1), (80, 80, 28, 3, 1, 1), (96, 192, 28, 3, 2, 1),
    (160, 160, 14, 3, 1, 1),
    (320, 320, 7, 3, 1, 1), (3, 32, 160, 3, 2, 1), (3, 48, 192, 7, 2, 1), (24, 64, 56, 5, 1, 1), (192, 48, 28, 1, 1, 1),
    (96, 384, 14, 1, 1, 1), (480, 112, 14, 1, 1, 1), (128, 128, 28, 1, 2, 1), (640, 160, 7, 1, 1, 1),
    (96, 96, 56, 3, 1, 96), (192, 192, 28, 3, 2, 192), (384, 384, 14, 5, 1, 384), (64, 64, 28, 3, 1, 4),
    (64, 96, 32, 3, 1, 1), (128, 128, 20, 3, 1, 1), (256, 192, 10, 3, 1, 1), (40, 80, 64, 3, 2, 1),
    (224, 224, 13, 3, 1, 1), (16, 32, 96, 3, 1, 1), (256, 256, 8, 3, 1, 1), (48, 96, 56, 3, 2, 1),
    (256, 64, 40, 1, 1, 1), (64, 256, 40, 1, 1, 1),
    (40, 240, 28, 1, 1, 1), (144, 40, 52, 1, 1, 1), (320, 1280, 10, 1, 1, 1), (1024, 256, 12, 1, 1, 1),
    (160, 320, 20, 1, 2, 1), (24, 96, 80, 1, 1, 1), (48, 48, 24, 5, 1, 1), (128, 128, 40, 3, 1, 128),
    (240, 240, 20, 5, 1, 240), (64, 64, 64, 3, 2, 64), (128, 128, 24, 3, 1, 4),
)  # fmt: skip
_OTHERS: tuple[tuple[str, nn.Module, tuple[int, ...]], ...] = (
    ("conv1d_64x400_96_k5", nn.Conv1d(64, 96, 5, padding=2), (1, 64, 400)),
    ("conv1d_128x256_128_k3s2", nn.Conv1d(128, 128, 3, 2, 1), (1, 128, 256)),
    ("conv3d_16x10x28_32_k3", nn.Conv3d(16, 32, 3, padding=1), (1, 16, 10, 28, 28)),
    ("conv3d_32x8x16_48_k3", nn.Conv3d(32, 48, 3, padding=1), (1, 32, 8, 16, 16)),
    ("conv_48x32_64_k3_dilated", nn.Conv2d(48, 64, 3, padding=2, dilation=2), (1, 48, 32, 32)),
    ("conv_4x32x28_64_k3", nn.Conv2d(32, 64, 3, padding=1), (4, 32, 28, 28)),
    ("deconv_96x20_48_k2s2", nn.ConvTranspose2d(96, 48, 2, 2), (1, 96, 20, 20)),
    ("deconv_48x24_32_k4s2", nn.ConvTranspose2d(48, 32, 4, 2, 1), (1, 48, 24, 24)),
)
_ROWS = ((384, 96), (64, 512), (1000, 160), (197, 384))


def one_core() -> Any:
    """This machine with a single core: the target that the measurements are for."""
    from felixlike.hardware import resolve_target

    host = resolve_target("cpu")
    return tvmlib.Target({"kind": "llvm", "mcpu": host.attrs["mcpu"], "num-cores": 1})


def workloads() -> Iterator[tuple[str, nn.Module, tuple[Tensor, ...]]]:
    """(name, module in eval mode, inputs), always in the same order with the same random weights."""
    torch.manual_seed(0)
    for m, k, n in _DENSE:
        layer = nn.Sequential(nn.Linear(k, n), nn.ReLU() if n % 64 == 0 else nn.Identity())
        yield f"dense_{m}x{k}x{n}", layer.eval(), (torch.randn(m, k),)
    for batch, m, k, n, transposed in _BATCHED:
        b = torch.randn(batch, n, k) if transposed else torch.randn(batch, k, n)
        name = f"bmm_{batch}x{m}x{k}x{n}{'_nt' if transposed else ''}"
        yield name, Product(transposed=transposed).eval(), (torch.randn(batch, m, k), b)
    for i, (c, o, size, kernel, stride, groups) in enumerate(_CONVOLUTIONS):
        convolution = nn.Conv2d(c, o, kernel, stride, kernel // 2, groups=groups)
        x = torch.randn(1, c, size, size)
        name = f"conv_{c}x{size}_{o}_k{kernel}s{stride}g{groups}"
        if i % 2 == 1:
            last = x.permute(0, 2, 3, 1).contiguous()
            yield f"{name}_channels_last", _ChannelsLast(convolution).eval(), (last,)
        if i % 3 == 2:
            yield f"{name}_residual", _Residual(convolution).eval(), (x, torch.randn_like(convolution(x)))
        else:
            yield name, nn.Sequential(convolution, nn.ReLU()).eval(), (x,)
    for name, module, shape in _OTHERS:
        yield name, nn.Sequential(module, nn.ReLU()).eval(), (torch.randn(shape),)
    for rows, columns in _ROWS:
        yield f"softmax_{rows}x{columns}", nn.Softmax(-1).eval(), (torch.randn(rows, columns),)
        yield f"layer_norm_{rows}x{columns}", nn.LayerNorm(columns).eval(), (torch.randn(rows, columns),)
    yield "max_pool_48x56", nn.MaxPool2d(3, 2, 1).eval(), (torch.randn(1, 48, 56, 56),)
    yield "avg_pool_96x28", nn.AvgPool2d(2, 2).eval(), (torch.randn(1, 96, 28, 28),)
    yield "global_pool_320x7", nn.AdaptiveAvgPool2d(1).eval(), (torch.randn(1, 320, 7, 7),)
