"""Tests for max and average pooling with various sizes, paddings and divisors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn
from torch.nn import functional

from felixlike.errors import UnsupportedOperator
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


_UNEVEN = [
    (2, (3, 4)),
    (2, (7, 2)),
    (2, (1, 9)),
    (2, (14, 5)),
    (2, (9, 20)),
    (1, 5),
    (1, 22),
    (3, (2, 3, 4)),
    (3, (5, 1, 7)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rank", "size"), _UNEVEN)
def test_adaptive_means(rank: int, size: Any, dtype: torch.dtype) -> None:
    x = torch.randn(_SHAPES[rank], generator=torch.Generator().manual_seed(0)).to(dtype)
    model = getattr(functional, f"adaptive_avg_pool{rank}d")
    got = compile_model(import_model(Apply(lambda x: model(x + 1, size) * 2), (x,)))(x)
    torch.testing.assert_close(got, model(x + 1, size) * 2)


@pytest.mark.parametrize(("extent", "size"), [(40, 2), (66, 2), (67, 2), (150, 2), (151, 2), (20, 6)])
def test_adaptive_means_of_long_windows(extent: int, size: int) -> None:
    x = torch.randn((2, 3, extent, extent), generator=torch.Generator().manual_seed(0))
    model = nn.AdaptiveAvgPool2d(size)
    torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), model(x))


def test_adaptive_means_behind_convolutions_that_keep_channels_last() -> None:
    x = torch.randn((1, 3, 22, 22), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3), nn.AdaptiveAvgPool2d((6, 5))).eval()
    torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), model(x), rtol=1e-4, atol=1e-5)


def test_adaptive_means_of_infinities_stay_in_their_windows() -> None:
    x = torch.zeros(1, 1, 10, 10)
    x[0, 0, 3, 3], x[0, 0, 9, 0] = math.inf, math.nan
    model = nn.AdaptiveAvgPool2d(4)
    torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), model(x), equal_nan=True)


def test_adaptive_means_of_single_elements_are_views() -> None:
    x = torch.randn((1, 3, 7, 7), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(7))
    imported = import_model(model, (x,))
    assert len(imported.tasks) == 1
    torch.testing.assert_close(compile_model(imported)(x), model(x))


def test_means_of_integers_with_a_divisor_are_refused() -> None:
    """Their factors would be integers, most of them 0."""
    with pytest.raises(UnsupportedOperator, match=r"avg_pool3d\.default of integers"):
        import_model(nn.AvgPool3d(2, divisor_override=3), (torch.ones(1, 1, 4, 4, 4, dtype=torch.int64),))
