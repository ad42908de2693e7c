"""Tests for folding zero pads into the padding of convolutions and poolings where both are equivalent."""

from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error

F = torch.nn.functional

FOLDED: dict[str, tuple[Any, tuple[int, ...], list[str]]] = {
    "one_side": (nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 16, 3, 2)), (1, 3, 8, 9), ["fused_conv2d_add"]),
    "and_its_own": (
        nn.Sequential(nn.ZeroPad2d((2, 1, 0, 1)), nn.Conv2d(3, 16, 3, padding=(1, 2), bias=False)),
        (1, 3, 8, 7),
        ["conv2d"],
    ),
    "one_dimension": (
        nn.Sequential(nn.ConstantPad1d((3, 0), 0.0), nn.Conv1d(3, 16, 4)),
        (2, 3, 9),
        ["fused_conv1d_add"],
    ),
    "mean": (nn.Sequential(nn.ZeroPad2d((1, 1, 2, 1)), nn.AvgPool2d(3, 2)), (1, 3, 8, 8), ["avg_pool2d"]),
    "nothing": (Apply(lambda x: F.pad(x, (0, 0, 0, 0)).softmax(-1)), (3, 4), ["softmax"]),
}

NOT_FOLDED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "ones": (nn.Sequential(nn.ConstantPad2d(1, 1.0), nn.Conv2d(3, 4, 3)), (1, 3, 8, 8)),
    "channels": (Apply(lambda x: F.conv2d(F.pad(x, (0, 0, 0, 0, 0, 1)), torch.ones(2, 4, 3, 3))), (1, 3, 8, 8)),
    "cropped": (nn.Sequential(nn.ConstantPad2d(-1, 0.0), nn.Conv2d(3, 4, 3)), (1, 3, 8, 8)),
    "mean_of_what_is_there": (
        nn.Sequential(nn.ZeroPad2d(1), nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
        (1, 3, 8, 8),
    ),
    "maximum": (nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(3)), (1, 3, 7, 7)),
}


def test_pads_are_folded_through_conversions() -> None:
    """Models in bfloat16 pad it, and their convolutions are computed in float32."""
    model = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 16, 3, 2)).eval().bfloat16()
    x = torch.randn(1, 3, 8, 9).bfloat16()
    imported = import_model(model, (x,))
    assert not any("pad" in task.name for task in imported.tasks)
    assert torch.allclose(compile_model(imported)(x), model(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", FOLDED)
def test_equivalent_pads_are_folded(name: str) -> None:
    model, shape, tasks = FOLDED[name]
    x = torch.randn(shape)
    imported = import_model(model.eval(), (x,))
    assert [task.name for task in imported.tasks] == tasks
    assert [int(n) for n in imported.tasks[0].module["main"].params[0].shape] == list(shape)
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_other_pads_are_not_folded(name: str) -> None:
    model, shape = NOT_FOLDED[name]
    x = -torch.rand(shape) - 1
    imported = import_model(model.eval(), (x,))
    assert len(imported.tasks) == 2
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-5
