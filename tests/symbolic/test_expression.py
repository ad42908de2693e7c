"""Expressions: simplification preserves values, bounds hold, and equal expressions are one object."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felixlike.symbolic.expr import expression as ex
from felixlike.symbolic.expr.comparison import at_least, equals, maximum, minimum, select
from felixlike.symbolic.expr.evaluation import Graph, evaluate
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.expr.node import Group, linear_parts
from felixlike.symbolic.expr.polynomial import expand, nonnegative
from felixlike.symbolic.expr.traversal import substitute, variables

A, B, C = (ex.var(name, 1, 12) for name in "abc")
NAMES = ("a", "b", "c")

Value = Callable[[dict[str, int]], Fraction]


def _const(value: int) -> tuple[Expr, Value]:
    return ex.const(value), lambda _: Fraction(value)


def _leaf(name: str) -> tuple[Expr, Value]:
    return ex.var(name, 1, 12), lambda env: Fraction(env[name])


def _binary(kind: str, a: tuple[Expr, Value], b: tuple[Expr, Value]) -> tuple[Expr, Value]:
    (x, f), (y, g) = a, b
    match kind:
        case "add":
            return x + y, lambda e: f(e) + g(e)
        case "sub":
            return x - y, lambda e: f(e) - g(e)
        case "mul":
            return x * y, lambda e: f(e) * g(e)
        case "min":
            return minimum(x, y), lambda e: min(f(e), g(e))
        case "max":
            return maximum(x, y), lambda e: max(f(e), g(e))
        case "select":
            return select(at_least(x, 3), y, x), lambda e: g(e) if f(e) >= 3 else f(e)
    return expand(x * y), lambda e: f(e) * g(e)


LEAVES = st.one_of(st.integers(-4, 9).map(_const), st.sampled_from(NAMES).map(_leaf))
KINDS = st.sampled_from(("add", "sub", "mul", "min", "max", "select", "expand"))
TREES = st.recursive(LEAVES, lambda t: st.builds(_binary, KINDS, t, t), max_leaves=12)
SUMS_AND_PRODUCTS = st.sampled_from(("add", "sub", "mul"))
POLYNOMIALS = st.recursive(LEAVES, lambda t: st.builds(_binary, SUMS_AND_PRODUCTS, t, t), max_leaves=12)
POINTS = st.fixed_dictionaries({name: st.integers(1, 12) for name in NAMES})


@settings(max_examples=300, deadline=None)
@given(TREES, POINTS)
def test_values_are_exact_and_within_bounds(tree: tuple[Expr, Value], point: dict[str, int]) -> None:
    expression, value = tree
    expected = value(point)
    result = evaluate(expression, point)
    assert result == float(expected)
    assert expression.low - 1e-9 <= result <= expression.high + 1e-9


@settings(max_examples=200, deadline=None)
@given(TREES, POINTS)
def test_expand_and_nonnegative_are_sound(tree: tuple[Expr, Value], point: dict[str, int]) -> None:
    expression, value = tree
    assert evaluate(expand(expression), point) == float(value(point))
    if nonnegative(expression):
        assert value(point) >= 0


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_pickling_gives_the_same_object(tree: tuple[Expr, Value]) -> None:
    assert pickle.loads(pickle.dumps(tree[0])) is tree[0]


@settings(max_examples=100, deadline=None)
@given(TREES, POINTS)
def test_substitution_is_evaluation(tree: tuple[Expr, Value], point: dict[str, int]) -> None:
    expression, value = tree
    replaced = substitute(expression, {v: point[v.name] for v in variables([expression])})
    assert replaced.is_const
    assert replaced.value == value(point)


def test_equal_expressions_are_one_object() -> None:
    assert A + B is B + A
    assert 2 * (A + B) is A * 2 + B + B
    assert expand((A + B) * (A - B)) is A * A - B * B
    assert A * B / B is A
    assert ex.const(2.0) is ex.const(2)


def test_bounds_decide_minimum_and_maximum() -> None:
    assert maximum(1, A * B) is A * B
    assert minimum(A, A * B) is A
    assert minimum(A, 20) is A
    assert str(minimum(A, B)) == "min(a, b)"


def test_gates_are_simplified() -> None:
    gate = at_least(A, 2)
    assert gate * gate is gate
    assert (1 - gate) * (1 - gate) is 1 - gate
    assert at_least(A, 1).value == 1
    assert at_least(A, 13).value == 0
    assert equals(A, A).value == 1
    assert equals(A, 20).value == 0
    assert select(gate, B, B) is B
    assert select(gate, 1, 0) is gate


def test_complete_products_of_a_group_are_constants() -> None:
    group = Group("i", 48, 3)
    x, y, z = (ex.var(f"i.{n}", 1, 48, group) for n in range(3))
    assert (x * y * z).value == 48
    assert (x * y * z * A) is 48 * A
    assert (A / (x * y * z)) is A / 48
    assert (x * y).high == 48
    assert at_least(x * y, 49).value == 0


def test_floor_division() -> None:
    assert ex.floordiv(A, 13).value == 0
    assert ex.floordiv(A, 1) is A
    assert ex.ceildiv(ex.const(10), 4).value == 3
    assert evaluate(ex.floordiv(A * B, C), {"a": 7, "b": 5, "c": 4}) == 8


def test_other_expressions_have_no_value_and_no_name() -> None:
    with pytest.raises(TypeError, match=r"a \+ b.*constant"):
        _ = (A + B).value
    with pytest.raises(TypeError, match=r"a \+ b.*variable"):
        _ = (A + B).name


def test_graphs_evaluate_many_points_at_once() -> None:
    import numpy as np

    graph = Graph([A * B, A + 1, ex.const(3)])
    values = {"a": np.array([1.0, 2.0]), "b": np.array([5.0, 7.0])}
    assert graph.evaluate(values, 2).tolist() == [[5, 2, 3], [14, 3, 3]]
    assert Graph([ex.const(3)]).evaluate({}, 4).tolist() == [[3]] * 4


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (A - B + 1, "a - b + 1"),
        (2 * A * (B + 3), "2*(b + 3)*a"),
        (A / B / C, "a/b/c"),
        (1 / A, "(1/a)"),
        (at_least(A * B, 33), "[a*b ≥ 33]"),
        (1 - at_least(A * B, 33), "[a*b ≤ 32]"),
        (1 - at_least(A, 3) * at_least(B, 3), "not([a ≥ 3]*[b ≥ 3])"),
        (select(at_least(A, 2), A, B), "select([a ≥ 2], a, b)"),
        (ex.floordiv(A + 1, 4), "(a + 1) // 4"),
        (-A, "-a"),
    ],
)
def test_expressions_as_text(expression: Expr, text: str) -> None:
    assert str(expression) == text


def test_floors_are_monotonic() -> None:
    x, t = ex.var("x", 0, 100), ex.var("t", 1, 8)
    begin, end = ex.floordiv(x * t, 16), ex.floordiv(x * t + t - 1, 16)
    assert minimum(16 * begin, 16 * end + 15) is 16 * begin
    assert not nonnegative(expand(begin - end))


@settings(max_examples=200, deadline=None)
@given(POLYNOMIALS)
def test_nonnegative_uses_coefficients_above_the_lower_bounds(tree: tuple[Expr, Value]) -> None:
    expression = expand(tree[0])
    shifted = {v: v.low + ex.var(f"{v.name} above", 0) for v in variables([expression])}
    constant, terms = linear_parts(expand(substitute(expression, shifted)))
    is_nonnegative = all(coefficient >= 0 for coefficient in (constant, *(c for _, c in terms)))
    assert nonnegative(expression) == (expression.low >= 0 or is_nonnegative)


def test_nonnegative_of_many_factors() -> None:
    factors = [ex.var(f"t{i}", 1, 4) for i in range(40)]
    product, even, odd = ex.mul(factors), ex.mul(factors[::2]), ex.mul(factors[1::2])
    assert nonnegative(product - even)
    assert not nonnegative(even - product)
    assert nonnegative(product - even - odd + 1)
    assert not nonnegative(product - even - odd)
    assert not nonnegative(0.5 * product - 1)
