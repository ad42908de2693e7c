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
        result: torch.Tensor = self.last(nn.functional.gelu(image.flatten(2).transpose(1, 2)))
        return result


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


class _Decoder(nn.Module):
    """Rows of features become images of one size, which are joined, as SegFormer's decoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(8, 16) for _ in range(3)])
        self.join, self.last = nn.Conv2d(48, 16, 1), nn.Conv2d(16, 5, 1)

    def forward(self, *features: torch.Tensor) -> torch.Tensor:
        images = []
        for layer, rows in zip(self.first, features, strict=True):
            image = layer(rows).transpose(1, 2).unflatten(2, (-1, int(rows.shape[1] ** 0.5)))
            images.append(nn.functional.interpolate(image, size=(16, 16), mode="bilinear"))
        classes: torch.Tensor = self.last(self.join(torch.cat(images, 1)).relu())
        return classes


def test_interpolations_of_rows_of_features_keep_channels_last() -> None:
    torch.manual_seed(0)
    model, features = _Decoder().eval(), tuple(torch.randn(2, n, 8) for n in (256, 64, 16))
    imported = import_model(model, features)
    names = [task.name for task in imported.tasks]
    assert sum("interpolate" in name for name in names) == 3  # columns twice, and all rows with what joins them
    assert not any("transpose" in name for name in names), names
    with torch.inference_mode():
        torch.testing.assert_close(compile_model(imported)(*features), model(*features), rtol=1e-4, atol=1e-5)


class _Upsampling(nn.Module):
    """A U-Net of two levels, whose classes are enlarged in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, padding=1)
        self.same, self.join = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(48, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.wide(x).relu()
        narrow = nn.functional.interpolate(self.same(self.narrow(wide).relu()), scale_factor=2.0, mode="bilinear")
        classes = self.last(self.join(torch.cat([wide, narrow], 1)).relu())
        return nn.functional.interpolate(classes, scale_factor=4.0, mode="bilinear")


def test_interpolations_between_convolutions_keep_channels_last_and_the_last_one_does_not() -> None:
    torch.manual_seed(0)
    model, x = _Upsampling().eval(), torch.randn(1, 3, 24, 20)
    imported = import_model(model, (x,))
    moved = [
        tuple(int(size) for size in task.module["main"].params[-1].shape)
        for task in imported.tasks
        if "transpose" in task.name
    ]
    assert sorted(moved) == [(1, 4, 24, 20), (1, 24, 20, 3)]
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
