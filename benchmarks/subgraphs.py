"""The ten subgraphs that figures are about: layers of BERT, ResNet-50, MobileNet-v2, R3D-18 and DCGAN, in float32.

In: nothing. Out: `SUBGRAPHS`, name → a function that makes the PrimFunc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import operators as op

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
