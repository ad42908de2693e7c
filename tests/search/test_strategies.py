"""All strategies: options, names, and behaviour on small spaces and with failing candidates."""

from __future__ import annotations

import math
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import workloads

from felixlike.costmodel import CostModel
from felixlike.errors import InvalidOption, MissingDependency
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.search import (
    LFBO,
    STRATEGIES,
    AdaTune,
    Candidate,
    Evolutionary,
    Genetic,
    Gradient,
    Measured,
    MetaSchedule,
    Observations,
    Random,
    Space,
    Strategy,
    TensorComprehensions,
    make_strategy,
    registry,
)
from felixlike.search.descent import Descent
from felixlike.search.diversity import spread_out
from felixlike.search.strategies.adatune import expected_improvement
from felixlike.search.variation import Variation
from felixlike.symbolic import Kind
from felixlike.symbolic.program.variables import groups

OWN_MODEL = ("adatune", "lfbo", "genetic")


def _space(name: str) -> Space:
    return Space(make_task(workloads.ALL[name](), resolve_target("cpu"), name=name), "default")


@pytest.fixture(scope="module")
def product() -> Space:
    return _space("matmul_relu")


@pytest.fixture(scope="module")
def convolution() -> Space:
    return _space("conv2d")


def _made(name: str) -> Strategy:
    if name == "metaschedule":
        pytest.importorskip("xgboost", reason="MetaSchedule's model is xgboost's")
        return MetaSchedule(population=32, generations=1)
    if name == "gradient":
        return Gradient(pool=16, seeds=4, structures=1, descent=Descent(steps=5))
    if name == "evolutionary":
        return Evolutionary(population=32, generations=1)
    return make_strategy(name)


def _seconds(candidate: Candidate) -> float:
    """Return made-up seconds: lower for long innermost loops, higher for long outermost ones; 1 point in 10 fails."""
    digits = sum((i + 1) * x for i, x in enumerate(candidate.point))
    if digits % 10 == 0:
        return math.inf
    tiles = [(v, x) for v, x in zip(candidate.sketch.variables, candidate.point, strict=True) if v.kind is Kind.TILE]
    return 1e-3 * math.exp(sum((0.3 if v.position == 0 else -0.2) * math.log(x) for v, x in tiles))


def _run(strategy: Strategy, space: Space, rounds: int, seed: int = 0, count: int = 16) -> list[Measured]:
    """Run a strategy without a session and return its measurements."""
    strategy.begin(CostModel(seed=0))
    known, all_measured = Observations(), list[Measured]()
    for number in range(rounds):
        candidates = strategy.propose(space, known, count, np.random.default_rng([seed, number]))
        assert len({c.key for c in candidates}) == len(candidates) <= count
        assert not {c.key for c in candidates} & known.seen
        measured = [Measured(candidate, _seconds(candidate)) for candidate in candidates]
        for measurement in measured:
            known.add(measurement.candidate, measurement.seconds)
        strategy.observe(space, measured)
        all_measured += measured
    return all_measured


@pytest.mark.parametrize("name", OWN_MODEL)
def test_strategies_with_their_own_models_learn_from_measurements(name: str, product: Space) -> None:
    random_seconds = np.array([m.seconds for m in _run(Random(), product, 16)])
    learned_seconds = np.array(
        [m.seconds for m in _run(make_strategy(name), product, 6, 1)[16:] if m.candidate.origin != "random"]
    )
    assert len(learned_seconds) >= 48
    assert np.median(learned_seconds) < np.quantile(random_seconds, 0.25)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_continue_if_every_candidate_fails(
    name: str, product: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_seconds", lambda _: math.inf)
    assert len(_run(_made(name), product, 3, count=6)) == 18


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_space_of_one_point_is_measured_once(name: str) -> None:
    assert len(_run(_made(name), _space("chain"), 2)) == 1


def test_a_strategy_forgets_an_earlier_run(product: Space) -> None:
    for name in ("evolutionary", *OWN_MODEL):
        strategy = _made(name)
        first = [m.candidate.key for m in _run(strategy, product, 2)]
        assert [m.candidate.key for m in _run(strategy, product, 2)] == first


@pytest.mark.parametrize("name", ["conv2d", "softmax"])
def test_mutation_and_crossover_stay_on_the_lattice(name: str, request: pytest.FixtureRequest) -> None:
    space, rng = _space(name), np.random.default_rng(0)
    for sketch in space.symbolic:
        points = sketch.sample(200, seed=1)
        moves = Variation(sketch)
        for children in (moves.mutated(points, rng), moves.crossed(points, points[::-1], 0.5, rng)):
            for _, columns in groups(sketch.variables):
                first = sketch.variables[columns[0]]
                if first.kind is Kind.TILE:
                    assert (children[:, columns].prod(axis=1) == first.extent).all()
                elif first.kind is not Kind.LOCATION:
                    assert np.isin(children[:, columns[0]], first.choices).all()
            locations = {tuple(row) for row in points[:, sketch.location_columns].tolist()}
            assert {tuple(row) for row in children[:, sketch.location_columns].tolist()} <= locations
        changed = (moves.mutated(points, rng) != points).any(axis=1)
        assert moves.fixed or changed.mean() > 0.6


def test_generations_of_tensor_comprehensions_have_the_sizes_published(convolution: Space) -> None:
    strategy = TensorComprehensions()
    measured = _run(strategy, convolution, 20, count=16)
    assert {m.candidate.origin for m in measured[:100]} == {"random"}
    bred = [m.candidate.origin for m in measured[100:]].count("bred")
    assert bred > 0.7 * len(measured[100:])
    assert len({m.candidate.key for m in measured}) == 320
    timed = [(m.seconds, m.candidate) for m in measured]
    second = strategy._population(1, timed)
    expected = [*sorted(timed[:100], key=lambda t: t[0])[:10], *(t for t in timed[100:190] if np.isfinite(t[0]))]
    assert second == sorted(expected, key=lambda t: t[0])
    means = [np.mean([np.log(s) for s, _ in timed[a:b] if s < 1]) for a, b in ((0, 100), (100, 190), (190, 280))]
    assert means[0] > means[1] > means[2]


def test_the_search_ends_after_the_last_generation(convolution: Space) -> None:
    measured = _run(TensorComprehensions(population=6, elites=2, generations=3), convolution, 6, count=4)
    assert len(measured) == 6 + 2 * 4


def test_children_have_three_parents_and_mutations(convolution: Space) -> None:
    sketch, rng = convolution.symbolic[0], np.random.default_rng(0)
    candidates = [Candidate(sketch, tuple(p), 0.0, "x") for p in sketch.sample(3, seed=5).tolist()]
    alike = [(1.0, candidate) for candidate in candidates]
    moves = Variation(sketch)
    for mutation, expected in ((0.0, 0.0), (0.07, 0.07), (1.0, 1.0)):
        strategy = TensorComprehensions(crossover=1.0, mutation=mutation)
        children = [strategy._child(candidates[0], alike, moves, rng)[0] for _ in range(300)]
        foreign = [
            all(tuple(child[columns]) != tuple(np.array(c.point)[columns]) for c in candidates)
            for child in children
            for columns in moves.columns
        ]
        assert np.mean(foreign) <= expected + 0.02
        assert np.mean(foreign) >= 0.4 * expected
    copies = TensorComprehensions(crossover=0.0, mutation=0.0)
    assert tuple(copies._child(candidates[0], alike, moves, rng)[0]) == candidates[0].point


def test_expected_improvement_is_that_of_normal_distributions() -> None:
    mean, sigma = np.array([0.4, 1.2, 0.9, 1.0]), np.array([0.3, 0.5, 0.0, 0.0])
    samples = np.random.default_rng(0).normal(mean[:2, None], sigma[:2, None], size=(2, 400_000))
    expected = np.maximum(samples - 1.0, 0.0).mean(axis=1)
    improvement = expected_improvement(mean, sigma, 1.0)
    np.testing.assert_allclose(improvement[:2], expected, rtol=0.03)
    np.testing.assert_array_equal(improvement[2:], [0.0, 0.0])
    assert expected_improvement(np.array([1.5]), np.array([0.0]), 1.0)[0] == 0.5


def test_evolution_proposes_candidates_with_high_scores(convolution: Space) -> None:
    strategy, model = Evolutionary(population=128), CostModel(seed=0)
    strategy.begin(model)
    measured = [
        Measured(c, _seconds(c)) for c in Random().propose(convolution, Observations(), 64, np.random.default_rng(0))
    ]
    known = Observations()
    for measurement in measured:
        known.add(measurement.candidate, measurement.seconds)
    strategy.observe(convolution, measured)
    candidates = strategy.propose(convolution, known, 16, np.random.default_rng(1))
    evolved = [c for c in candidates if c.origin in ("evolved", "elite")]
    assert len(evolved) >= 8
    scores = [c.score for c in candidates if not math.isnan(c.score)]
    assert scores == sorted(scores, reverse=True)
    features = convolution.features(evolved[0].sketch, np.array([evolved[0].point]))
    assert features is not None
    assert model.predict(features, convolution.task.key)[0] == pytest.approx(evolved[0].score, abs=1e-4)


def test_strategies_are_made_by_name_or_used_unchanged() -> None:
    strategy = Gradient(seeds=64)
    assert make_strategy(strategy) is strategy
    assert isinstance(make_strategy("lfbo"), LFBO)
    with pytest.raises(InvalidOption, match=r"strategy: .*class Gradient.*Gradient\(\)"):
        make_strategy(Gradient)
    with pytest.raises(InvalidOption, match=r"strategy: .*\b3\b"):
        make_strategy(3)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (Gradient, {"seeds": 0}, "Gradient: .*seeds.*≥ 1.* 0\\b"),
        (Gradient, {"explore": 1.5}, "Gradient: .*explore.* 0 to 1, .*1.5"),
        (Gradient, {"noise": -1.0}, "Gradient: .*noise.*-1.0"),
        (Evolutionary, {"population": True}, "Evolutionary: .*population.*True"),
        (AdaTune, {"trees": 1}, "AdaTune: .*trees.* 1\\b"),
        (LFBO, {"quantile": "half"}, "LFBO: .*quantile.*'half'"),
        (Genetic, {"mutation": math.nan}, "Genetic: .*mutation.*nan"),
        (TensorComprehensions, {"elites": 100}, "TensorComprehensions: .*population.*≥ 101.* 100\\b"),
        (TensorComprehensions, {"generations": 0}, "TensorComprehensions: .*generations.* 0\\b"),
    ],
)
def test_options_out_of_range_are_named(kind: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        kind(**options)


class Mine(Random):
    """A strategy of another package."""


def _fails() -> None:
    raise RuntimeError("no licence")


def _registered(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, f"{__name__}:{value}", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])


def test_other_packages_can_register_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    _registered(monkeypatch, "mine", Mine.__name__)
    assert type(make_strategy("mine")).__name__ == "Mine"
    with pytest.raises(InvalidOption, match=r"'mine2'.*, mine"):
        make_strategy("mine2")


@pytest.mark.parametrize(
    ("value", "text"), [(_fails.__name__, "RuntimeError: no licence"), ("dict", "search.Strategy, .*a dict")]
)
def test_a_broken_registered_strategy_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str, text: str) -> None:
    if value == "dict":
        monkeypatch.setattr(sys.modules[__name__], "dict", dict, raising=False)
    _registered(monkeypatch, "broken", value)
    with pytest.raises(InvalidOption, match=f"strategy 'broken' .*: .*{text}"):
        make_strategy("broken")


def test_metaschedule_needs_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingDependency, match=r"strategy metaschedule: xgboost.*pip install xgboost"):
        MetaSchedule()


def test_metaschedule_proposes_points_of_felixlikes_sketches(product: Space) -> None:
    measured = _run(_made("metaschedule"), product, 2, count=8)
    assert {m.candidate.origin for m in measured} == {"metaschedule"}
    for measurement in measured:
        assert measurement.candidate.sketch.accepts(measurement.candidate.point)


def test_the_strategy_of_the_documentation_works(product: Space) -> None:
    text = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
    example = next(block for block in text.split("```python\n")[1:] if "class Nearest" in block).split("```")[0]
    names: dict[str, Any] = {}
    exec(example.split("fast = ")[0], names)
    measured = _run(names["Nearest"](), product, 3)
    best = min(measured[:16], key=lambda m: m.seconds).candidate
    assert len(measured) == 48
    assert [m.candidate.sketch.key for m in measured[16:32]].count(best.sketch.key) > 12
    table = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert table == list(STRATEGIES)


def test_a_batch_is_spread_over_dissimilar_points() -> None:
    mean = np.array([1.0, 0.99, 0.98, 0.5, 0.49, -3.0])
    groups = np.array([0, 0, 0, 1, 1, 2])
    covariance = np.where(groups[:, None] == groups, 1.0, 0.0)
    assert spread_out(mean, covariance, 3, 0.0) == [0, 1, 2]  # the best ones
    assert spread_out(mean, covariance, 3, 2.0)[:2] == [0, 3]  # the best of each group with a high mean
    assert sorted(spread_out(mean, covariance, 9, 1.0)) == list(range(6))
    assert spread_out(mean, np.zeros((6, 6)), 2, 1.0) == [0, 1]


def test_an_untrained_model_gives_a_covariance_of_points(convolution: Space) -> None:
    model = CostModel(seed=0)
    sampled = [(s, s.sample(8, seed=1)) for s in convolution.symbolic[:2]]
    features = [convolution.features(s, points) for s, points in sampled]
    symbolic = [f for f in features if f is not None]
    mean, covariance = model.joint(symbolic, convolution.task.key)
    assert covariance.shape == (len(mean), len(mean))
    np.testing.assert_allclose(
        mean, np.concatenate([model.predict(f, convolution.task.key) for f in symbolic]), atol=1e-4
    )
    np.testing.assert_allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > -1e-6
