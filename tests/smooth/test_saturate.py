"""Equality saturation of small formulas: the resulting operators and values, and the behaviour at limits."""

from __future__ import annotations

import contextlib
import math
from collections import Counter

import pytest
import torch

from felixlike.errors import InvalidGraph, NoSmoothForm
from felixlike.smooth import SaturationLimits, saturate
from felixlike.smooth.encode import threshold
from felixlike.smooth.graph import SmoothGraph
from felixlike.smooth.lower import Lowered
from felixlike.symbolic.expr import expression as ex
from felixlike.symbolic.expr.comparison import at_least, maximum, minimum, select
from felixlike.symbolic.expr.expression import Expr

A, B = ex.var("a", 1, 64), ex.var("b", 1, 64)


def _evaluate(expression: Expr, **values: float) -> float:
    graph = saturate([expression])
    columns = torch.tensor([[math.log(v) for v in values.values()]], dtype=torch.float64)
    return float(torch.expm1(Lowered(graph, list(values))(columns, 1e-6)))


def _operators(expression: Expr) -> Counter[str]:
    return Counter(node.op for node in saturate([expression]).nodes)


def test_monomials_are_linear_in_log_space() -> None:
    assert set(_operators(4 * A * B / (A * A))) <= {"Softplus", "Plus", "Minus", "Constant", "Column"}


def test_a_common_factor_is_moved_out_of_the_sum() -> None:
    assert _operators(A * B + A * B * B)["LogSumExp"] == 1


def test_selects_with_one_gate_are_merged() -> None:
    gate = at_least(A, 2)
    assert _operators(select(gate, select(gate, A, B), B))["Mix"] == 1


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (A * B + 3, 3 * 5 + 3),
        (2 * A * B - A - 1, 2 * 15 - 3 - 1),
        (minimum(A * A, B * 4), 9),
        (maximum(A, B), 5),
        (select(at_least(A * B, 20), A, B), 5),
        (select(at_least(A * B, 10), A, B), 3),
        (select(at_least(A - B, 0), A, B), 5),
        (at_least(A, 2) + at_least(B, 2), 2),
        ((1 - at_least(A, 9)) * at_least(B, 2), 1),
        (A / (B + 1) * 12, 6),
        (ex.const(0), 0),
    ],
)
def test_values_are_preserved(expression: Expr, wanted: float) -> None:
    assert _evaluate(expression, a=3, b=5) == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_a_shifted_variable_may_be_zero() -> None:
    u = ex.var("u", 0, 512)
    graph = saturate([u, at_least(u, 1)], shifted=frozenset({"u"}))
    columns = torch.tensor([[0.0], [math.log1p(16)]], dtype=torch.float64)
    values = torch.expm1(Lowered(graph, ["u"])(columns, 1e-6))
    torch.testing.assert_close(values, torch.tensor([[0.0, 0.0], [16.0, 1.0]], dtype=torch.float64), atol=1e-4, rtol=0)


def test_reaching_a_limit_is_reported() -> None:
    expression = ex.add(A * n + B / n for n in range(2, 9))
    for limits in (SaturationLimits(iterations=1), SaturationLimits(nodes=1)):
        with pytest.raises(NoSmoothForm, match="formula 0") as caught:
            saturate([expression], limits=limits)
        assert "SaturationLimits" in caught.value.remedy
    saturated = []
    for iterations in range(2, 31):
        with contextlib.suppress(NoSmoothForm):
            saturated.append(saturate([expression], limits=SaturationLimits(iterations=iterations)).saturated)
    assert saturated == sorted(saturated)
    assert not saturated[0]
    assert saturated[-1]


@pytest.mark.parametrize("k", [1, 2, 3, 10, 65])
def test_the_threshold_of_a_gate_is_between_the_integers(k: int) -> None:
    assert k - 1 < threshold(k)
    assert threshold(k) < k or k > 3


def test_graphs_are_plain_data() -> None:
    graph = saturate([A * B + 1])
    assert SmoothGraph.from_json(graph.to_json()) == graph
    with pytest.raises(InvalidGraph, match=r"TypeError|KeyError"):
        SmoothGraph.from_json({"nodes": 3})
    with pytest.raises(InvalidGraph, match="missing node"):
        SmoothGraph.from_json({"nodes": [["Plus", [0, 5], 0.0, ""]], "roots": [0], "saturated": True})
