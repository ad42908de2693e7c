"""Gradients of the predicted score agree with finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import workloads

from felixlike.costmodel import load
from felixlike.features import formulas
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.search.descent import _Coordinates
from felixlike.smooth import relax
from felixlike.symbolic import sketches

_STEP = 1e-5
"""Step of the finite differences, in the log of a factor."""


@pytest.mark.parametrize(("name", "space"), [("matmul_relu", "default"), ("conv2d", "default"), ("matmul_relu", "own")])
def test_gradients_of_the_score_agree_with_finite_differences(name: str, space: str) -> None:
    task = make_task(workloads.ALL[name](), resolve_target("cpu"), name=name)
    sketch = next(s for s in sketches(task, space=space) if s.is_symbolic and s.variables)
    relaxed = relax(formulas(sketch), dtype=torch.float64)
    network = load("cpu").network.double()
    coordinates = _Coordinates(sketch, relaxed.log_points(sketch.sample(4, 0, paths=1)))
    offset = torch.from_numpy(np.random.default_rng(0).normal(0.0, 0.2, size=coordinates.start.shape))
    start = coordinates.start + offset  # between lattice points, as most points of a descent

    def score(z: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = network(relaxed(coordinates.log_x(z))).mean(dim=0)
        return scores

    z = start.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(score(z).sum(), z)
    with torch.no_grad():
        for column in range(z.shape[1]):
            step = torch.zeros_like(start)
            step[:, column] = _STEP
            difference = (score(start + step) - score(start - step)) / (2 * _STEP)
            torch.testing.assert_close(gradient[:, column], difference, rtol=1e-3, atol=1e-6)
    assert (gradient.abs() > 1e-4).any()
