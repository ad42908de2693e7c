"""Tests for folding batch norms into the weights and biases of the convolutions before them."""

from typing import Any

import pytest
import torch
from torch import nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error

LAYERS: dict[str, tuple[nn.Module, nn.Module, tuple[int, ...], str]] = {
    "conv1d": (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (2, 4, 9), "conv1d"),
    "conv2d_groups": (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (1, 4, 5, 6), "conv2d"),
    "conv3d": (nn.Conv3d(4, 6, 3, bias=False), nn.BatchNorm3d(6, affine=False), (1, 4, 4, 5, 5), "conv3d"),
    "transposed": (
        nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6, eps=0.1),
        (1, 8, 5, 4),
        "conv2d_transpose",
    ),
    "transposed_groups": (nn.ConvTranspose2d(8, 6, 3, groups=2), nn.BatchNorm2d(6), (1, 8, 5, 4), "conv2d_transpose"),
}


def with_random_statistics(norm: Any) -> Any:
    """Set random statistics and weights, because the defaults would hide errors."""
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    if norm.affine:
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_norm_is_folded_into_its_convolution(name: str) -> None:
    convolution, norm, shape, operator = LAYERS[name]
    torch.manual_seed(0)
    model, x = nn.Sequential(convolution, with_random_statistics(norm), nn.ReLU()).eval(), torch.randn(shape)
    imported = import_model(model, (x,))
    names = [task.name.replace("_strided_slice", "") for task in imported.tasks]  # of `pad_channels_to_vectors`
    assert names == [f"fused_{operator}_add_relu"]
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


class Twice(nn.Module):
    """A convolution whose output is needed before the norm as well."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 6, 3), with_random_statistics(nn.BatchNorm2d(6))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.convolution(x)
        return y, self.norm(y)


def test_a_convolution_with_another_reader_is_not_changed() -> None:
    model, x = Twice().eval(), torch.randn(1, 4, 5, 5)
    imported = import_model(model, (x,))
    assert sum(task.weight for task in imported.tasks if "conv2d" in task.name) == 1
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5
