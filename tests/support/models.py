"""Models of benchmarks, demo and tests. Each function returns (module in eval mode, example inputs), with a fixed seed.

Weights are random: latency does not depend on them, and nothing is downloaded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from felixlike.bench.networks import Model, Output, bert, mlp, mobilenet_v2, resnet18, vit_b16

__all__ = [
    "IMAGE",
    "OPERATORS",
    "Apply",
    "Model",
    "Output",
    "Product",
    "bert",
    "mlp",
    "mobilenet_v2",
    "resnet18",
    "vit",
]


def vit() -> Model:
    """Return a vision transformer of base width with two layers."""
    return vit_b16(layers=2)


class Product(nn.Module):
    """Computes a · b of two inputs, or a · bᵀ."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ (b.transpose(-1, -2) if self.transposed else b)


class Apply(nn.Module):
    """Wraps a function of tensors in a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


class Counter(nn.Module):
    """A model that counts its calls."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * self.count


def _module(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[], Model]:
    def build() -> Model:
        torch.manual_seed(0)
        module = make().eval()
        _randomize_batch_norms(module)
        return module, tuple(torch.randn(shape) for shape in shapes)

    return build


def _function(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Model]:
    return _module(lambda: Apply(function), *shapes)


def _randomize_batch_norms(module: nn.Module) -> None:
    """Set statistics and weights of batch norms to random values, since the default values would hide errors."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2.0)
            nn.init.uniform_(part.weight, 0.5, 2.0)
            nn.init.normal_(part.bias)


def _embedding() -> Model:
    torch.manual_seed(0)
    return nn.Embedding(50, 16).eval(), (torch.randint(0, 50, (2, 6)),)


IMAGE = (1, 8, 12, 12)

OPERATORS: dict[str, Callable[[], Model]] = {
    "dense": _module(lambda: nn.Linear(24, 40), (6, 24)),
    "dense_relu": _module(lambda: nn.Sequential(nn.Linear(24, 40), nn.ReLU()), (6, 24)),
    "dense_gelu": _module(lambda: nn.Sequential(nn.Linear(24, 40), nn.GELU()), (2, 3, 24)),
    "matmul": _function(torch.matmul, (6, 20), (20, 9)),
    "batch_matmul": _function(torch.matmul, (3, 6, 20), (3, 20, 9)),
    "conv2d": _module(lambda: nn.Conv2d(8, 6, 3), IMAGE),
    "conv2d_stride_padding": _module(lambda: nn.Conv2d(8, 6, 3, stride=2, padding=1), IMAGE),
    "conv2d_groups": _module(lambda: nn.Conv2d(8, 6, 3, groups=2), IMAGE),
    "conv2d_depthwise": _module(lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), IMAGE),
    "conv2d_dilation": _module(lambda: nn.Conv2d(8, 6, 3, dilation=2, bias=False), IMAGE),
    "conv2d_batch_norm_relu": _module(
        lambda: nn.Sequential(nn.Conv2d(8, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()), IMAGE
    ),
    "max_pool": _module(lambda: nn.MaxPool2d(3, stride=2, padding=1), IMAGE),
    "avg_pool": _module(lambda: nn.AvgPool2d(2), IMAGE),
    "adaptive_pool": _module(lambda: nn.AdaptiveAvgPool2d((3, 5)), IMAGE),
    "global_pool": _module(lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "softmax": _module(lambda: nn.Softmax(-1), (4, 6, 10)),
    "layer_norm": _module(lambda: nn.LayerNorm(20), (2, 6, 20)),
    "batch_norm": _module(lambda: nn.BatchNorm2d(8), IMAGE),
    "elementwise": _function(lambda a, b: torch.tanh(a * 2 + b) - torch.sigmoid(b) / (a.abs() + 1), (4, 6, 5), (6, 1)),
    "transpose": _function(lambda a: a.transpose(0, 1) * 2, (4, 7)),
    "reshape_permute": _function(lambda a: a.reshape(2, 6, 4, 5).permute(0, 2, 1, 3) + 1, (2, 6, 20)),
    "embedding": _embedding,
    "concat": _function(lambda a, b: torch.cat((a, b * 2), dim=1), (3, 4), (3, 5)),
}
"""Small models, one for each operator that must import, compile and agree with PyTorch."""
