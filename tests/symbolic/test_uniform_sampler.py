"""`UniformSampler` draws every point that satisfies a gate, and no other."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import workloads

from felixlike.errors import InvalidSchedule
from felixlike.symbolic import Kind, sketches
from felixlike.symbolic.expr import factors
from felixlike.symbolic.expr.comparison import at_least, at_most, select
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import Expr, const, floordiv
from felixlike.symbolic.expr.factors import divisors, factorisations
from felixlike.symbolic.expr.node import Group
from felixlike.symbolic.program import uniform_sampler
from felixlike.symbolic.program.uniform_sampler import UniformSampler
from felixlike.symbolic.program.variables import Variable


def tile(name: str, extent: int, parts: int, instruction: int) -> list[Variable]:
    group = Group(name, extent, parts)
    return [Variable(f"{name}.{i}", Kind.TILE, extent, divisors(extent), instruction, i, group) for i in range(parts)]


UNROLL = Variable("unroll", Kind.UNROLL, 0, (0, 16, 64), 2, 0)
VARIABLES = (*tile("i", 12, 3, 0), *tile("j", 18, 3, 1), UNROLL)
I0, I1, I2, J0, J1, J2, U = (v.expression for v in VARIABLES)

GATES = {
    "nothing": const(1),
    "threads": at_least(I1 * J1, 3) * at_most(I1 * J1, 12),
    "memory": at_most(I1 * I2 + J1 * J2, 20) * at_least(I1 * J1, 3),
    "a choice": at_most(U * I0, 64) * at_least(I0, 2),
    "squares": at_most(I1 * I1 * J2, 18),
    "a quotient": at_least(I1 / I2 + J0 / J1 * 3, 3),
    "floors": at_least(floordiv(I0 * J0 + 2, I2), 4) * (1 - at_least(J2, 3) * at_least(U, 16)),
    "branches": at_most(select(at_least(J1, 3), I2 * I1, J2 * I0), 4),
}


def all_points(members: tuple[Variable, ...], gate: Expr) -> set[tuple[int, ...]]:
    """Return all points that satisfy a gate, by enumeration."""
    tables = []
    for _, of_instruction in itertools.groupby(members, key=lambda v: v.instruction):
        variables = list(of_instruction)
        if variables[0].kind is Kind.TILE:
            table = factorisations(variables[0].extent, len(variables), variables[-1].choices[-1])
            assert table is not None
            tables.append(table.tolist())
        else:
            tables.append([[c] for c in variables[0].choices])
    points = np.array([list(itertools.chain(*parts)) for parts in itertools.product(*tables)], dtype=np.float64)
    values = {v.name: points[:, i] for i, v in enumerate(members)}
    accepted = Graph([gate]).evaluate(values, len(points))[:, 0] > 0.5
    return {tuple(p) for p in points[accepted].astype(int).tolist()}


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("most", [1 << 18, 20, 0])
def test_every_valid_point_is_drawn_equally_often(gate: Expr, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform_sampler, "MOST_COMBINATIONS", most)
    sampler = UniformSampler(VARIABLES, gate)
    expected = all_points(VARIABLES, gate)
    points = sampler.draw(60_000, np.random.default_rng(0))
    drawn = Counter(map(tuple, points.tolist()))
    assert set(drawn) == expected
    # Counts are Poisson's: six standard deviations, for up to a thousand points
    mean = len(points) / len(expected)
    assert max(abs(n - mean) for n in drawn.values()) < 6 * mean**0.5
    if most > 1000:
        assert sampler.size == len(expected)
        assert len(points) == 60_000


def test_factors_with_equal_products_share_a_class() -> None:
    by_threads = UniformSampler(VARIABLES, GATES["threads"])
    combinations = {frozenset(part.names): len(part.classes) for part in by_threads._lists}
    assert combinations[frozenset({"unroll"})] == 1
    assert combinations[frozenset(v.name for v in VARIABLES[:6])] < 6 * 6


def test_loops_with_too_many_factorisations_are_drawn_prime_by_prime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "TABLE_LIMIT", 50)  # 18 has fewer factorizations, and only this test uses 9009
    members = (*tile("i", 9009, 5, 0), *tile("j", 18, 3, 1), UNROLL)
    i0, j0 = members[0].expression, members[5].expression
    sampler = UniformSampler(members, at_most(i0 * j0, 64) * at_least(j0, 2))
    points = sampler.draw(20_000, np.random.default_rng(0))
    assert 0 < len(points) < 20_000
    assert (points[:, :5].prod(axis=1) == members[0].extent).all()
    assert (points[:, 0] * points[:, 5] <= 64).all()
    assert set(points[:, 5]) == set(divisors(18)) - {1}


def test_a_sampler_may_be_empty() -> None:
    for gate in (const(0), at_least(I0 * J0, 1000)):
        assert UniformSampler(VARIABLES, gate).size == 0
        assert UniformSampler(VARIABLES, gate).draw(5, np.random.default_rng(0)).shape == (0, 7)


def test_all_points_of_a_small_space_are_drawn() -> None:
    """The gate requires a pipeline of two steps on a GPU, and TVM accepts the drawn points."""
    sketch = sketches(workloads.matmul(1, 4, 2), "sm_90")[1]
    gate = sketch.structure(()).gate
    assert not gate.is_const
    expected = all_points(sketch.variables, gate)
    points = sketch.sample(20 * len(expected), seed=0)
    assert sketch.valid(points).all()
    assert {tuple(p) for p in points.tolist()} == expected
    for point in points[:5].tolist():
        sketch.schedule(point)


def test_a_space_without_valid_points_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = sketches(workloads.matmul(8, 8, 8), "sm_90")[0]
    monkeypatch.setattr(sketch.structures, "sampler", lambda _: UniformSampler(sketch.variables, const(0)))
    with pytest.raises(InvalidSchedule) as caught:
        sketch.sample(3, seed=0)
    assert caught.value.where == repr(sketch)
    assert "random points" not in caught.value.what  # it is known before any point is drawn
