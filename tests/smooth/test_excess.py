"""Smooth limits are violated exactly where their constraints are, and have gradients."""

import numpy as np
import pytest
import torch
import workloads

from felixlike.features import formulas
from felixlike.smooth import relax
from felixlike.smooth.limits import sides
from felixlike.symbolic import Sketch, sketches
from felixlike.symbolic.expr.evaluation import Graph, evaluate
from felixlike.symbolic.expr.expression import var
from felixlike.symbolic.program.constraints import Constraint


@pytest.fixture(scope="module")
def product() -> tuple[Sketch, ...]:
    return sketches(workloads.matmul(256, 192, 320), "sm_90")


def test_sides_have_positive_terms_only() -> None:
    x, y = var("x", 1, 100), var("y", 1, 100)
    greater, less = sides([Constraint(2 * x * y - 3 * y - 40, "some limit")])
    at = {"x": 5, "y": 7}
    assert (evaluate(greater, at), evaluate(less, at)) == (70, 61)


def test_excess_is_positive_where_a_constraint_is_violated(product: tuple[Sketch, ...]) -> None:
    for sketch in product:
        relaxed = relax(formulas(sketch))
        excess = relaxed.excess(())
        assert excess is not None
        points = sketch.sampler.any.draw(500, np.random.default_rng(0))
        limits = sketch.structure(()).limits
        exact = Graph([c.formula for c in limits]).evaluate(sketch.values(points), len(points))
        smooth = excess(relaxed.log_points(points), relaxed.width).detach().numpy()
        assert ((smooth > 1e-6) == (exact > 0)).all()
        assert (exact > 0).any(axis=0).any()


def test_excess_has_gradients(product: tuple[Sketch, ...]) -> None:
    relaxed = relax(formulas(product[0]))
    excess = relaxed.excess(())
    assert excess is not None
    log_x = relaxed.log_points(product[0].sample(3, seed=1)).requires_grad_(True)
    (gradient,) = torch.autograd.grad(excess(log_x, relaxed.width).sum(), log_x)
    assert gradient.isfinite().all()
    assert (gradient != 0).any()


def test_cpu_sketches_have_no_limits() -> None:
    assert relax(formulas(sketches(workloads.matmul(64, 64, 64))[0])).excess(()) is None
