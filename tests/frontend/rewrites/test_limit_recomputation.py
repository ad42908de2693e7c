"""Tests that chains whose expressions double with each step become kernels of bounded size."""

from __future__ import annotations

import pytest
import torch
from support.models import Apply
from torch import Tensor

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.runtime import compile_model
from felixlike.spaces.cpu.flat import flat


def _iterated(x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = x * (1.5 - 0.5 * x * x)
    return x


@pytest.mark.parametrize(("steps", "most"), [(2, 1), (30, 12)])
def test_iterations_become_a_few_kernels(steps: int, most: int) -> None:
    x = torch.rand(5, 40, generator=torch.Generator().manual_seed(0))
    imported = import_model(Apply(lambda x: _iterated(x, steps)), (x,))
    assert sum(task.weight for task in imported.tasks) <= most
    for task in imported.tasks:
        (schedule,) = flat(_tvm.Schedule(task.module), 16)
        assert len(_tvm.found(schedule.mod["main"].body, _tvm.ir.TensorLoad)) <= 256
    torch.testing.assert_close(compile_model(imported)(x), _iterated(x, steps))


def test_logcumsumexp_has_bounded_kernels() -> None:
    x = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    imported = import_model(Apply(lambda x: torch.logcumsumexp(x, 1)), (x,))
    for task in imported.tasks:
        for schedule in flat(_tvm.Schedule(task.module), 16):
            assert len(_tvm.found(schedule.mod["main"].body, _tvm.ir.TensorLoad)) <= 256
    torch.testing.assert_close(compile_model(imported)(x), torch.logcumsumexp(x, 1))
