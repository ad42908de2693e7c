"""Tests for max and average pooling with various sizes, paddings and divisors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_SHAPES = {1: (1, 3, 11), 2: (2, 3, 7, 9), 3: (1, 2, 5, 6, 7)}


@pytest.mark.parametrize(
    ("rank", "model"),
    [
        (1, nn.AvgPool1d(20, ceil_mode=True)),
        (1, nn.MaxPool1d(20, ceil_mode=True)),
        (2, nn.AvgPool2d((20, 2), ceil_mode=True)),
        (2, nn.AvgPool2d((10, 2), 3, 1, ceil_mode=True, count_include_pad=False)),
        (2, nn.AvgPool2d((10, 3), (3, 2), 1, ceil_mode=True, divisor_override=7)),
        (2, nn.AvgPool2d(3, 2, 1, divisor_override=5)),
        (2, nn.MaxPool2d((2, 20), ceil_mode=True)),
        (2, nn.MaxPool2d(3, 1, 1, 2)),
        (3, nn.AvgPool3d(2, divisor_override=3)),
        (3, nn.MaxPool3d((2, 20, 3), ceil_mode=True)),
    ],
    ids=str,
)
def test_pooling_matches_pytorch(rank: int, model: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.randn(_SHAPES[rank])
    torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), model(x))


def test_windows_are_clipped_to_the_input() -> None:
    """The last pooling of EfficientNet has windows of 1280 × 1280 on an image of 7 × 7."""
    (task,) = import_model(nn.AvgPool2d(1280, ceil_mode=True), (torch.randn(1, 16, 7, 7),)).tasks
    assert task.flops < 10 * 16 * 7 * 7
