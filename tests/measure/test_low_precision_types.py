"""Candidates of float16, bfloat16 and float64 are built, checked and timed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from felixlike.frontend import import_model
from felixlike.measure import MeasurePool, Status
from felixlike.search import Candidate
from felixlike.symbolic import sketches


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_candidates_are_correct(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).to(dtype)
    imported = import_model(model, (torch.randn(16, 64).to(dtype),))
    task = imported.tasks[0]
    with MeasurePool(imported.target) as pool:
        for sketch in sketches(task, space="own"):
            (point,) = sketch.sample(1, seed=1).tolist()
            for measurement in pool.measure(task, [Candidate(sketch, tuple(point), 0.0, "random")]):
                assert measurement.status is Status.OK, measurement.message
                assert measurement.error is not None
                assert measurement.error < 1e-2
