"""Test operators without schedule choices: scans and sorts use TVM's kernels, are timed, and do not warn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.models import Apply
from torch import Tensor

import felixlike as fx


@pytest.mark.parametrize(
    "operator",
    [lambda x: x.cumsum(-1), lambda x: x.topk(3).values, lambda x: x.sort(-1).values * 2.0],
    ids=["cumsum", "topk", "sort"],
)
def test_scans_and_sorts_are_compiled_without_warnings(operator: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, x = Apply(operator), torch.randn(6, 50)
    tuned = fx.optimize(model, x, trials=6, progress=False)  # a warning is an error here
    torch.testing.assert_close(tuned(x), operator(x))
    assert {task.how for task in tuned.report.tasks} <= {"measured", "untuned"}
