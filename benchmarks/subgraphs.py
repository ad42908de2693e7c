"""Define the ten subgraphs of the benchmarks: float32 layers of BERT, ResNet-50, MobileNet-v2, R3D-18 and DCGAN.

`SUBGRAPHS` maps names to functions that make the PrimFunc, all of whose inputs are arguments of the call. `OUTSIDE`
has three more. `LAYERS` maps names to functions that make the PyTorch module, with constant weights where the network
has them, and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from support import operators as op
from support.models import Product
from torch import nn

SUBGRAPHS: dict[str, Callable[[], Any]] = {
    "dense+bias+relu": lambda: op.dense(128, 768, 3072),
    "batch matmul": lambda: op.batch_matmul(12, 128, 64, 128),
    "matmul": lambda: op.matmul(512, 512, 512),
    "conv2d 3×3": lambda: op.conv2d(64, 56, 64),
    "conv2d 1×1": lambda: op.conv2d(256, 14, 1024, 1),
    "depthwise conv2d 3×3": lambda: op.depthwise(144, 56),
    "conv3d 3×3×3": lambda: op.conv3d(64, 8, 28, 64),
    "conv2d transpose 4×4 s2": lambda: op.transposed(256, 8, 128),
    "softmax": lambda: op.softmax(1536, 128),
    "layer norm": lambda: op.layer_norm(128, 768),
}

OUTSIDE: dict[str, Callable[[], Any]] = {
    "conv2d 5×5": lambda: op.conv2d(32, 48, 96, 5),
    "dense+bias+relu, odd": lambda: op.dense(100, 1000, 333),
    "batch matmul, 197 tokens": lambda: op.batch_matmul(12, 197, 64, 197),
}
"""Three workloads that influenced no design decision: a larger window, extents that no vector divides, and ViT's
attention.
"""

Layer = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _relu(layer: Callable[[], nn.Module], *shape: int) -> Callable[[], Layer]:
    return lambda: (nn.Sequential(layer(), nn.ReLU()).eval(), (torch.rand(*shape) - 0.5,))


LAYERS: dict[str, Callable[[], Layer]] = {
    "dense+bias+relu": _relu(lambda: nn.Linear(768, 3072), 128, 768),
    "batch matmul": lambda: (Product(transposed=True), (torch.rand(12, 128, 64), torch.rand(12, 128, 64))),
    "matmul": lambda: (Product(transposed=False), (torch.rand(512, 512), torch.rand(512, 512))),
    "conv2d 3×3": _relu(lambda: nn.Conv2d(64, 64, 3, padding=1), 1, 64, 56, 56),
    "conv2d 1×1": _relu(lambda: nn.Conv2d(256, 1024, 1), 1, 256, 14, 14),
    "depthwise conv2d 3×3": _relu(lambda: nn.Conv2d(144, 144, 3, padding=1, groups=144), 1, 144, 56, 56),
    "conv3d 3×3×3": _relu(lambda: nn.Conv3d(64, 64, 3, padding=1), 1, 64, 8, 28, 28),
    "conv2d transpose 4×4 s2": _relu(lambda: nn.ConvTranspose2d(256, 128, 4, 2, 1), 1, 256, 8, 8),
    "softmax": lambda: (nn.Softmax(-1), (torch.rand(1536, 128),)),
    "layer norm": lambda: (nn.LayerNorm(768).eval(), (torch.rand(128, 768),)),
}
