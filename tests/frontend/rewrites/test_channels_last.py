"""Tests for the channels-last layout of chains of convolutions. Single convolutions are not changed."""

from __future__ import annotations

import pytest
import torch
from support.models import Apply
from torch import nn

import felixlike as fx
from felixlike.frontend import import_model
from felixlike.runtime import compile_model


class _Chain(nn.Module):
    """A small vision network. TVM's layout pass supports some of its activations only."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.point = nn.Conv2d(channels, channels, 1)
        self.strided = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.last = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.first(x))
        x = x + nn.functional.hardswish(self.point(nn.functional.relu6(self.depthwise(x))))
        x = nn.functional.max_pool2d(nn.functional.silu(self.strided(x)), 2)
        x = torch.cat([x, torch.sigmoid(self.last(x))], dim=1)
        return x.mean((2, 3)).flatten(1)


def _layouts(model: nn.Module, x: torch.Tensor, target: str = "cpu") -> list[tuple[int, ...]]:
    """Return the output shapes of tasks with a convolution."""
    tasks = fx.extract_tasks(model.eval(), (x,), target=target)
    return [tuple(int(e) for e in t.module["main"].params[-1].shape) for t in tasks if "conv" in t.name]


def test_outputs_are_unchanged() -> None:
    torch.manual_seed(0)
    model, x = _Chain().eval(), torch.randn(2, 3, 13, 17)
    with torch.inference_mode():
        expected = model(x)
    output = compile_model(import_model(model, (x,)))(x)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_a_chain_is_permuted_at_its_ends_only() -> None:
    model, x = _Chain().eval(), torch.randn(1, 3, 16, 16)
    assert all(shape[-1] in (8, 16) and shape[1] == shape[2] for shape in _layouts(model, x))
    tasks = fx.extract_tasks(model, (x,))
    assert [t.name for t in tasks if "transpose" in t.name] == ["transpose"]


def test_squeeze_of_a_negative_dimension() -> None:
    torch.manual_seed(0)
    layers = nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 1, 3), nn.AvgPool1d(3)
    model, x = nn.Sequential(*layers, Apply(lambda y: y.squeeze(-2))).eval(), torch.randn(2, 3, 53)
    with torch.inference_mode():
        torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_permutation_by_negative_dimensions() -> None:
    torch.manual_seed(0)
    layers = nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.Conv1d(8, 8, 3)
    model, x = nn.Sequential(*layers, Apply(lambda y: y.permute(-1, 0, -2) * 2)).eval(), torch.randn(2, 3, 53)
    with torch.inference_mode():
        torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), model(x), rtol=1e-4, atol=1e-5)


class _Tokens(nn.Module):
    """Pixels as rows of features, which become an image for a depthwise convolution, as in SegFormer.

    The image's sides may be exchanged, or its columns may be taken in groups.
    """

    def __init__(self, *, turned: bool = False, grouped: bool = False) -> None:
        super().__init__()
        self.turned, self.grouped = turned, grouped
        self.first, self.last = nn.Linear(12, 24), nn.Linear(24, 12)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.first(x).transpose(1, 2)
        if self.grouped:
            image = rows.reshape(-1, 24, 8, 2, 8).transpose(2, 3).reshape(-1, 24, 16, 8)
        else:
            image = rows.reshape(-1, 24, 8, 16)
        image = self.depthwise(image.transpose(2, 3) if self.turned else image)
        return self.last(nn.functional.gelu(image.flatten(2).transpose(1, 2)))


@pytest.mark.parametrize(
    ("model", "moved"), [(_Tokens(), False), (_Tokens(turned=True), True), (_Tokens(grouped=True), True)]
)
def test_rows_of_features_become_an_image_without_a_copy(model: nn.Module, moved: bool) -> None:
    torch.manual_seed(0)
    model, x = model.eval(), torch.randn(2, 128, 12)
    imported = import_model(model, (x,))
    assert any("transpose" in task.name for task in imported.tasks) is moved, [t.name for t in imported.tasks]
    with torch.inference_mode():
        torch.testing.assert_close(compile_model(imported)(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_single_convolution_is_not_changed() -> None:
    x = torch.randn(1, 16, 14, 14)
    assert _layouts(nn.Conv2d(16, 16, 3, padding=1), x) == [(1, 16, 14, 14)]


def test_gpus_keep_their_layout() -> None:
    model, x = _Chain().eval(), torch.randn(1, 3, 16, 16)
    assert all(shape[1] in (8, 16) for shape in _layouts(model, x, "sm_90"))


@pytest.mark.parametrize("dimensions", [1, 3])
def test_one_and_three_dimensions(dimensions: int) -> None:
    torch.manual_seed(0)
    convolution = {1: nn.Conv1d, 3: nn.Conv3d}[dimensions]
    layers = [convolution(c, 8, 3, padding=1) for c in (2, 8, 8, 8)]
    model = nn.Sequential(*[m for layer in layers for m in (layer, nn.ReLU6())]).eval()
    x = torch.randn(1, 2, *[9, 7, 5][:dimensions])
    with torch.inference_mode():
        expected = model(x)
    torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), expected, rtol=1e-4, atol=1e-5)
