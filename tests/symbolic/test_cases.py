"""Case distinctions over tile factors, and bounds of indices with remainders."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.cases import by_cases
from felixlike.symbolic.expr.evaluation import evaluate
from felixlike.symbolic.expr.expression import Expr, const, floordiv, var
from felixlike.symbolic.expr.node import Group
from felixlike.symbolic.program import Remainder
from felixlike.symbolic.program.affine import affine

NINE = Group("i", 9, 2)
OUTER, INNER = (var(f"i.{n}", 1, 9, NINE) for n in range(2))


def factors(name: str, extent: int, count: int) -> list[Expr]:
    """Return a loop's tile factors."""
    return [var(f"{name}.{n}", 1, extent, Group(name, extent, count)) for n in range(count)]


def test_each_combination_selects_its_number() -> None:
    other = var("j.0", 1, 12, Group("j", 12, 3))
    (selected,) = by_cases((INNER, other), lambda values: (100 * values["i.1"] + values["j.0"] % 5,))
    for i in (1, 3, 9):
        for j in (1, 2, 3, 4, 6, 12):
            assert evaluate(selected, {"i.1": i, "j.0": j}) == 100 * i + j % 5


def test_the_first_factor_is_derived_from_the_others() -> None:
    first, product = by_cases((OUTER, INNER), lambda values: (values["i.0"], values["i.0"] * values["i.1"]))
    assert str(first) == "select([i.1 ≥ 9], 1, select([i.1 ≥ 3], 3, 9))"
    assert product.value == 9


def test_one_quantity_is_distinguished_if_it_suffices() -> None:
    parts = [var(f"k.{n}", 1, 64, Group("k", 64, 4)) for n in range(4)]
    inner = parts[2] * parts[3]

    def numbers(values: Mapping[str, int]) -> tuple[int, int]:
        return max(1, values["k.2"] * values["k.3"] // 16), values["k.1"]

    groups, other = by_cases(parts, numbers, (inner,))
    assert str(groups) == "select([k.2*k.3 ≥ 64], 4, select([k.2*k.3 ≥ 32], 2, 1))"
    assert evaluate(other, {"k.1": 16, "k.2": 2, "k.3": 1, "k.0": 2}) == 16


def test_a_few_combinations_of_each_kind_are_evaluated() -> None:
    """5 factors of 960 have 5250 combinations; together with 3 factors of 60 there are 283,500."""
    many = factors("f", 960, 5), factors("g", 60, 3)
    block = many[0][1] * many[0][2] * many[0][3] * many[0][4]
    evaluations = 0

    def numbers(values: Mapping[str, int]) -> tuple[int, int]:
        nonlocal evaluations
        evaluations += 1
        size = round(evaluate(block, values))
        return min(size, 60), int(size % 60 != 0)

    sizes, remainders = by_cases([*many[0], *many[1]], numbers, [block, (block, many[1][0])])
    assert evaluations < 2000
    for split in ((960, 1, 1, 1, 1), (2, 2, 4, 3, 20), (16, 1, 1, 1, 60), (1, 1, 8, 8, 15)):
        values = dict(zip([v.name for v in many[0]], split, strict=True)) | {"g.0": 60, "g.1": 1, "g.2": 1}
        assert (evaluate(sizes, values), evaluate(remainders, values)) == numbers(values)


def test_too_many_combinations_without_a_quantity_are_refused() -> None:
    many = [*factors("f", 960, 5), *factors("g", 60, 3)]
    with pytest.raises(UnsupportedSketch, match="200 combinations"):
        by_cases(many, lambda values: (values["f.2"] * values["g.1"],), [many[0]])


def test_other_variables_are_refused() -> None:
    with pytest.raises(UnsupportedSketch, match=r"\bn\b"):
        by_cases((var("n", 1, 8),), lambda _: (0,))
    many = [var(f"k{n}.0", 1, 360, Group(f"k{n}", 360, 2)) for n in range(2)]
    with pytest.raises(UnsupportedSketch, match="200 combinations"):
        by_cases(many, lambda _: (0,))


def test_bounds_of_remainders_are_exact() -> None:
    """Bounds of x % 3 are exact for x = a · t + b, where the loops over a and b cover a window of 9."""
    a, b = var("a", 0, 8), var("b", 0, 8)
    x = a * INNER + b
    index = affine(2 + x - 3 * floordiv(x, 3), (a, b))
    assert index is not None
    assert index.strides == ()
    assert [type(floor) for floor in index.floors] == [Remainder]
    extents = {a: OUTER, b: INNER}
    for t in (1, 3, 9):
        tiles = {"i.0": 9 // t, "i.1": t}
        for running_loops in ((), (a,), (b,), (a, b)):
            values = [
                (i * t + j) % 3 + 2
                for i in range(9 // t if a in running_loops else 1)
                for j in range(t if b in running_loops else 1)
            ]
            low, high = index.span({v: extents[v] for v in running_loops})
            assert (evaluate(low, tiles), evaluate(high, tiles)) == (min(values), max(values))
        last = (9 // t - 1) * t % 3
        assert evaluate(index.step(a, OUTER), tiles) == pytest.approx(last / max(1, 9 // t - 1))


def test_bounds_of_nested_remainders_are_exact() -> None:
    v = var("v", 0, 99)
    half = floordiv(v - 50 * floordiv(v, 50), 7)
    index = affine(4 * (half - 3 * floordiv(half, 3)), (v,))
    assert index is not None
    low, high = index.span({v: const(100)})
    assert (low.value, high.value) == (0, 8)
