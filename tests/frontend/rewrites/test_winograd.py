"""Tests for fast convolutions: they match PyTorch up to rounding and are used only where they are faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.models import Apply
from torch import nn

import felixlike as fx
from felixlike import _tvm
from felixlike.frontend import import_model, make_task
from felixlike.frontend.constants import EXACT
from felixlike.frontend.rewrites import channels_last, winograd
from felixlike.frontend.rewrites.cook_toom import fast_convolution
from felixlike.hardware import described_target, with_precision
from felixlike.runtime import compile_model, max_relative_error
from felixlike.symbolic import sketches

CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "even": (nn.Conv2d(16, 16, 3, padding=1), (1, 16, 8, 8)),
    "tiles that reach beyond": (nn.Conv2d(16, 32, 3, padding=1), (1, 16, 13, 7)),
    "without padding": (nn.Conv2d(16, 16, 3), (1, 16, 10, 53)),
    "much padding": (nn.Conv2d(16, 16, 3, padding=(2, 0)), (1, 16, 6, 9)),
    "images": (nn.Conv2d(16, 16, 3, padding=1), (3, 16, 9, 6)),
    "one tile": (nn.Conv2d(16, 16, 3, padding=1), (1, 16, 1, 2)),
    "few channels": (nn.Conv2d(3, 10, 3, padding=1), (1, 3, 12, 12)),
    "five taps": (nn.Conv2d(8, 16, 5, padding=2), (1, 8, 9, 9)),
    "three by four taps": (nn.Conv2d(8, 16, (3, 4), padding=1), (1, 8, 9, 9)),
    "one dimension": (nn.Conv1d(16, 16, 3, padding=1), (2, 16, 21)),
    "three dimensions": (nn.Conv3d(8, 16, 3, padding=1), (2, 8, 4, 7, 6)),
    "steps along the first": (
        nn.Conv3d(8, 16, 3, stride=(2, 1, 1), padding=(2, 1, 0), dilation=(2, 1, 1)),
        (1, 8, 7, 6, 9),
    ),
}


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fast convolutions regardless of their cost."""
    monkeypatch.setattr(winograd, "LEAST_SPEEDUP", 0.0)
    monkeypatch.setattr(channels_last, "MOST_MOVED", 1e9)


def _is_fast(model: nn.Module, *shape: int, target: Any = "cpu") -> bool:
    return any("fast" in t.name for t in fx.extract_tasks(model.eval(), (torch.zeros(shape),), target=target))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("case", CASES)
def test_outputs_match_pytorch_s(case: str) -> None:
    layer, shape = CASES[case]
    torch.manual_seed(0)
    model, x = nn.Sequential(layer, nn.ReLU()).eval(), torch.randn(shape)
    assert _is_fast(model, *shape)
    assert max_relative_error(compile_model(import_model(model, (x,))), model, (x,)).error < 1e-5


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("size", "names"),
    [
        (6, {"conv2d_fast_input": 2, "conv2d_fast_product": 2, "fused_conv2d_fast_output_add_add1_relu": 2}),
        (8, {"fused_conv2d_fast_kernel_add_add1_relu": 2}),
    ],
    ids=["three rows of tiles", "four rows of tiles"],
)
def test_epilogues_are_fused_with_the_output_transformation(size: int, names: dict[str, int]) -> None:
    """Two cores share four rows of tiles evenly, each with all steps of its rows."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + self.norm(self.convolution(x)))

    model, x = nn.Sequential(nn.Conv2d(16, 16, 1), Residual(), Residual()).eval(), torch.randn(1, 16, size, size)
    tasks = fx.extract_tasks(model, (x,), target=described_target("zen5"))
    assert {t.name: t.weight for t in tasks if "fast" in t.name} == names


@pytest.mark.parametrize("tile", [2, 4])
def test_weights_are_transformed_along_both_dimensions(tile: int) -> None:
    """A weight with a single tap at (a, b) selects column a of G along the height and column b along the width."""
    tiled = winograd.Tiled(size=8, output=8, taps=3, padding=1, tile=tile)
    weights = np.zeros((1, 1, 3, 3), "float32")
    weights[0, 0, 0, 2] = 1
    transformed = winograd.transformed_weights(weights, winograd.Plan(1, 1, 1, (), (tiled, tiled)))
    matrix = np.array(fast_convolution(tile, 3).taps, "float64")
    np.testing.assert_allclose(transformed.reshape(tiled.points, -1), np.outer(matrix[:, 0], matrix[:, 2]), rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv2d(8, 8, 3, padding=1), (1, 8, 14, 14)),  # moving tiles takes longer than the products
        (
            nn.Conv2d(512, 512, 3, padding=1),
            (1, 512, 7, 7),
        ),  # reading four times the weights takes longer than the products
        (nn.Conv2d(64, 64, 3, padding=1, stride=2), (1, 64, 56, 56)),
        (nn.Conv2d(64, 64, 3, padding=2, dilation=2), (1, 64, 56, 56)),
        (nn.Conv2d(128, 128, 3, padding=1, groups=2), (1, 128, 56, 56)),
        (nn.Conv2d(64, 64, 1), (1, 64, 56, 56)),
        (Apply(lambda x: nn.functional.conv2d(x, x[:, :, :3, :3].transpose(0, 1))), (64, 64, 56, 56)),
    ],
    ids=["few channels", "few places", "strided", "dilated", "grouped", "one tap", "weights computed"],
)
def test_fast_convolution_is_not_used_where_it_is_slower(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert not _is_fast(model, *shape)


def test_fast_convolution_is_used_where_it_is_faster() -> None:
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
    assert _is_fast(model, 1, 64, 56, 56)
    assert not _is_fast(model, 1, 64, 56, 56, target="sm_90")


def test_tiles_are_larger_if_weights_are_few() -> None:
    """For 256 channels at 14 × 14 positions, tiles of 4 quadruple 2.4 MB of weights and tiles of 2 double them."""
    sizes: dict[int, tuple[int, ...]] = {}
    for channels, size, name in ((64, 56, "fast_kernel"), (256, 14, "fast_product")):
        layer, x = nn.Conv2d(channels, channels, 3, padding=1), torch.zeros(1, channels, size, size)
        tasks = fx.extract_tasks(layer, (x,), target=described_target("zen5"))
        (task,) = (t for t in tasks if name in t.name)
        sizes[channels] = tuple(int(n) for n in task.module["main"].params[1].shape)
    assert sizes == {64: (6, 6, 64, 64), 256: (16, 256, 256)}


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "cores", "is_one"),
    [
        (64, 64, 56, 2, True),
        (64, 64, 56, 8, False),  # 14 rows of tiles keep 8 cores busy for seven eighths of the time
        (64, 64, 28, 2, False),
        (64, 60, 56, 2, False),  # no whole vectors
        (256, 256, 32, 2, False),  # the cache holds 7 tiles
        (256, 128, 32, 2, True),
    ],
)
def test_all_steps_are_one_kernel_if_each_core_has_enough_tiles(
    inputs: int, outputs: int, size: int, cores: int, is_one: bool
) -> None:
    target = described_target("zen5", cores=cores)
    x = torch.zeros(1, inputs, size, size)
    names = {t.name for t in fx.extract_tasks(nn.Conv2d(inputs, outputs, 3, padding=1), (x,), target=target)}
    assert any("fast_kernel" in name for name in names) == is_one
    assert any("fast_product" in name for name in names) != is_one


def test_products_of_transformed_tiles_are_not_rounded() -> None:
    """They would be off by several percent, so they have float32 schedules alone."""
    model = nn.Sequential(*(nn.Conv2d(128, 128, 3, padding=1) for _ in range(2))).eval()
    target = with_precision(described_target("zen5"), "bfloat16")
    tasks = {task.name: task for task in fx.extract_tasks(model, (torch.zeros(1, 128, 28, 28),), target=target)}
    product = tasks["conv2d_fast_product"]
    assert {sketch.precision for sketch in sketches(product, space="own")} == {"float32"}
    plain = make_task(_tvm.without_attributes(product.module["main"], EXACT), target, name="main", constants=[1])
    assert {sketch.precision for sketch in sketches(plain, space="own")} == {"float32", "bfloat16"}
    exact = fx.extract_tasks(model, (torch.zeros(1, 128, 28, 28),), target=described_target("zen5"))
    assert not any(EXACT in task.module["main"].attrs for task in exact)


@pytest.mark.parametrize(("channels", "size", "is_fast"), [(128, 28, True), (96, 14, False), (63, 28, True)])
def test_convolutions_in_bfloat16_compete_with_transformed_ones(channels: int, size: int, is_fast: bool) -> None:
    """A convolution in pairs takes half of the time, and an odd number of channels has none."""
    model = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1))
    target = described_target("zen5")
    shape = (1, channels, size, size)
    assert _is_fast(model, *shape, target=target)
    assert _is_fast(model, *shape, target=with_precision(target, "bfloat16")) == is_fast
    without = with_precision(described_target("zen3"), "bfloat16")
    assert _is_fast(model, *shape, target=without)
