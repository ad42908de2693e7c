"""Tests for group and instance norms: right in both layouts, fused with activations, and with symbolic sketches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import felixlike as fx
from felixlike.frontend import import_model
from felixlike.runtime import compile_model
from felixlike.symbolic import sketches


def _check(model: nn.Module, x: torch.Tensor) -> None:
    """Compare with float64. The input's mean is 100, so that sums of squares would lose digits."""
    x = x + 100.0
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
    output = compile_model(import_model(model, (x,)))(x)
    torch.testing.assert_close(output.double(), expected, rtol=1e-3, atol=1e-3)


@settings(max_examples=6, deadline=None)
@given(
    batch=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 3, 7]),
    members=st.sampled_from([1, 4, 13]),
    places=st.sampled_from([(53,), (7, 13), (1, 2), (3, 5, 2)]),
)
def test_groups_of_odd_sizes(batch: int, groups: int, members: int, places: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(groups, groups * members)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    _check(norm, torch.randn(batch, groups * members, *places))


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 32), nn.InstanceNorm2d(32, affine=True), nn.InstanceNorm2d(32)])
def test_norms_between_convolutions(norm: nn.Module) -> None:
    torch.manual_seed(0)
    layers: list[Any] = [nn.Conv2d(8, 32, 3), norm, nn.SiLU(), nn.Conv2d(32, 8, 3), nn.GroupNorm(2, 8)]
    model = nn.Sequential(*layers).double().eval()
    x = torch.randn(1, 8, 17, 13)
    with torch.inference_mode():
        expected = model(x.double())
    output = compile_model(import_model(model.float(), (x,)))(x)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-4)


def test_an_activation_is_fused_with_the_norm() -> None:
    model = nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU()).eval()
    (task,) = fx.extract_tasks(model, (torch.randn(1, 32, 24, 24),))
    task_sketches = sketches(task)
    assert task_sketches
    assert all(sketch.is_symbolic for sketch in task_sketches)


def test_with_channels_last_only_the_result_is_large() -> None:
    model = nn.Sequential(nn.Conv2d(32, 32, 3), nn.GroupNorm(8, 32), nn.ReLU(), nn.Conv2d(32, 32, 3)).eval()
    tasks = {task.name: task for task in fx.extract_tasks(model, (torch.randn(1, 32, 28, 28),))}
    sums = [task for name, task in tasks.items() if name.startswith(("channel_", "group_"))]
    assert len(sums) == 4
    assert all([int(e) for e in task.module["main"].params[-1].shape] == [1, 32] for task in sums)
    assert all(sketch.is_symbolic for task in sums for sketch in sketches(task))
