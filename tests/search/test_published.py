"""Presets: published algorithms step by step, each part alone, and options that contradict them."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import workloads
from torch import Tensor

from felixlike import records
from felixlike._util.deadline import Deadline
from felixlike.costmodel import CostModel
from felixlike.costmodel.boosted_trees import Trees
from felixlike.errors import InvalidOption, MissingDependency
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.measure import SimulatedPool
from felixlike.search import (
    PRESETS,
    AdaTune,
    Candidate,
    Evolutionary,
    Gradient,
    Measured,
    Observations,
    Random,
    Scheduling,
    Space,
    Strategy,
    draw,
    make_strategy,
    strategy_names,
)
from felixlike.search.descent import Descent, Start, descend
from felixlike.search.rounding import round_points
from felixlike.search.strategies import adatune as adatune_module
from felixlike.search.strategies import gradient as gradient_module
from felixlike.tuning import Budget, Session
from felixlike.tuning.config import RunConfig


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(make_task(workloads.ALL["matmul_relu"](), resolve_target("cpu"), name="matmul_relu"), "default")


def _measured(space: Space, count: int) -> list[Measured]:
    """Return random candidates with made-up seconds."""
    candidates = Random().propose(space, Observations(), count, np.random.default_rng(5))
    return [Measured(c, 1e-3 + 1e-6 * (sum(c.point) % 97)) for c in candidates]


def _observed(strategy: Strategy, space: Space, count: int = 24) -> Observations:
    """Begin a run of a strategy with a pretrained model, and let it observe random candidates."""
    strategy.begin(CostModel(seed=0, pretrained=True))
    known, measured = Observations(), _measured(space, count)
    for measurement in measured:
        known.add(measurement.candidate, measurement.seconds)
    strategy.observe(space, measured)
    return known


def _descent(strategy: Gradient) -> Descent:
    """Return the options of a strategy's descent; of the default strategy, those of a GPU."""
    return strategy.descent or Descent()


def _felix(**changed: Any) -> Gradient:
    strategy = make_strategy("felix")
    assert isinstance(strategy, Gradient)
    return replace(strategy, **changed)


def _scores(model: CostModel, space: Space, candidates: Sequence[Candidate]) -> np.ndarray:
    """Return the scores of the networks alone, float64[n]."""
    scores = []
    for candidate in candidates:
        features = space.features(candidate.sketch, np.array([candidate.point]))
        assert features is not None
        with torch.no_grad():
            scores.append(float(model.network(torch.from_numpy(np.log1p(features)).float()).mean()))
    return np.array(scores)


def test_felix_is_algorithm_1(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def watched(starts: Sequence[Start], model: CostModel, options: Descent, task: str | None = None) -> Any:
        seen.update(starts=starts, options=options, task=task, visited=descend(starts, model, options, task))
        return seen["visited"]

    monkeypatch.setattr(gradient_module, "descend", watched)
    strategy = _felix(descent=replace(_descent(_felix()), steps=20))  # 200 take longer and show no more
    known = _observed(strategy, space)
    chosen = strategy.propose(space, known, 16, np.random.default_rng(0))

    starts: Sequence[Start] = seen["starts"]
    assert sum(len(start.seeds) for start in starts) == 8
    assert all(start.sketch.valid(start.seeds).all() and not start.noise.any() for start in starts)
    points = {(start.sketch.key, tuple(p)) for start in starts for p in start.seeds.tolist()}
    assert not points & {c.key for _, c in known.best}  # no measured point is a seed
    assert seen["task"] is None  # no correction

    rounded: dict[Any, Candidate] = {}
    for start, visited in zip(starts, seen["visited"], strict=True):
        assert len(visited) == 21 * len(start.seeds)  # the seeds, and every step
        nearest = round_points(start.sketch, visited)
        for point in nearest[start.sketch.valid(nearest)].tolist():
            candidate = Candidate(start.sketch, tuple(point), float("nan"), "expected")
            if candidate.key not in known.seen:
                rounded[candidate.key] = candidate
    everything = list(rounded.values())
    assert strategy.model is not None
    scores = _scores(strategy.model, space, everything)
    threshold = np.sort(scores)[-16]
    assert len(chosen) == 16
    assert {c.key for c in chosen} <= rounded.keys()
    assert min(scores[[c.key for c in everything].index(c.key)] for c in chosen) >= threshold - 1e-5


def test_felix_has_the_numbers_of_the_paper() -> None:
    felix, descent = _felix(), _descent(_felix())
    assert (felix.seeds, descent.steps, descent.keep_every, felix.trials_per_round) == (8, 200, 1, 16)
    assert not descent.scaled_penalty
    assert Gradient() is not felix
    assert Gradient().descent is None  # the default stays
    assert Descent().scaled_penalty


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({"explore": 0.5}, lambda origins: origins.count("random") >= 8),
        ({"neighbours": 256, "generations": 2}, lambda origins: any("neighbour" in o for o in origins)),
        ({"elite": 4, "noise": 0.3}, lambda origins: "gradient" in origins),
        ({"diversify": True, "apart": 1.0}, lambda origins: "gradient" in origins),
        ({"keep_structures": True}, lambda origins: "gradient" in origins),
        ({"correction": True}, lambda origins: "gradient" in origins),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_each_part_can_be_switched_on_alone(
    changed: dict[str, Any], holds: Callable[[list[str]], bool], space: Space
) -> None:
    short = Descent(steps=10, keep_every=1, scaled_penalty=False)
    strategy = _felix(descent=short, **changed)
    chosen = strategy.propose(space, _observed(strategy, space), 16, np.random.default_rng(0))
    assert len({c.key for c in chosen}) == 16
    assert holds([c.origin for c in chosen])
    plain = _felix(descent=short)
    without = plain.propose(space, _observed(plain, space), 16, np.random.default_rng(0))
    assert [c.key for c in chosen] != [c.key for c in without]


class _Flat(CostModel):
    """A model with equal scores everywhere."""

    def score(self, log_features: Tensor, task: str | None = None) -> Tensor:
        return (0.0 * log_features.sum(dim=(1, 2))).expand(2, -1)


def test_a_fixed_penalty_does_not_depend_on_the_gradient_of_the_cost(space: Space) -> None:
    sketch = max(space.symbolic, key=lambda s: len(s.variables))
    seeds = np.repeat(sketch.sample(1, seed=1), 4, axis=0)
    start = Start(space.relaxed(sketch), seeds, np.full(seeds.shape, 9.0))  # far out of the box

    def outside(options: Descent) -> np.ndarray:
        (visited,) = descend([start], _Flat(seed=0), options)
        tiles = visited.reshape(-1, 4, seeds.shape[1])
        return np.array([np.minimum(step, 0.0).sum() for step in tiles])

    scaled = outside(Descent(steps=20, keep_every=20))
    fixed = outside(Descent(steps=20, keep_every=20, scaled_penalty=False))
    assert scaled[0] == scaled[-1] == fixed[0] < 0  # a cost without a slope scales the penalty to 0
    assert fixed[-1] > fixed[0]


def test_the_descent_may_use_the_paper_s_step(space: Space) -> None:
    sketch = max(space.symbolic, key=lambda s: len(s.variables))
    seeds, relaxed = sketch.sample(4, seed=1), space.relaxed(sketch)
    points = relaxed.log_points(seeds)
    algebraic, cauchy = relaxed(points), relaxed(points, step_kernel="cauchy")
    assert not torch.equal(algebraic, cauchy)
    start, model = Start(relaxed, seeds, np.zeros(seeds.shape)), CostModel(seed=0)
    (ours,) = descend([start], model, Descent(steps=2))
    (papers,) = descend([start], model, Descent(steps=2, step_kernel="cauchy"))
    assert np.isfinite(papers).all()
    assert not np.array_equal(ours, papers)
    with pytest.raises(InvalidOption, match=r"'gaussian' .*algebraic, cauchy"):
        Descent(step_kernel="gaussian")


def test_trees_can_be_left_out_of_a_score(space: Space) -> None:
    model = CostModel(seed=0, pretrained=True)
    sketch = space.symbolic[0]
    points = np.unique(sketch.sample(32, seed=0), axis=0)
    features = space.features(sketch, points)
    assert features is not None
    with_none = model.predict(features)

    class Constant(Trees):
        """Trees that predict 7 everywhere."""

        def __init__(self) -> None:
            pass

        def predict(self, rows: Any) -> Any:
            return np.full(len(rows), 7.0, dtype=np.float32)

    model.network.trees = Constant()
    np.testing.assert_array_equal(model.predict_with_spread(features, trees=False)[0], with_none)
    np.testing.assert_allclose(model.predict(features), 0.5 * (with_none + 7.0), rtol=1e-5)


def test_without_the_correction_the_networks_learn_from_the_task(space: Space) -> None:
    changed = {}
    for correction in (True, False):
        strategy = Evolutionary(population=16, generations=0, correction=correction)
        known = _observed(strategy, space)
        assert strategy.model is not None
        before = copy.deepcopy(strategy.model.network.state_dict())
        strategy.propose(space, known, 4, np.random.default_rng(0))
        after = strategy.model.network.state_dict()
        changed[correction] = any(not torch.equal(before[name], after[name]) for name in before)
    assert changed == {True: False, False: True}


def test_ansor_proposes_64_candidates_of_2048_points_and_4_generations(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = make_strategy("ansor")
    assert isinstance(strategy, Evolutionary)
    assert (strategy.population, strategy.generations, strategy.trials_per_round) == (2048, 4, 64)
    known = _observed(strategy, space)
    generations = list[int]()
    children = Evolutionary._children

    def watched(self: Evolutionary, space: Space, model: Any, variations: Any, parents: Any, rng: Any) -> Any:
        generations.append(len(parents))
        return children(self, space, model, variations, parents, rng)

    monkeypatch.setattr(Evolutionary, "_children", watched)
    chosen = strategy.propose(space, known, 64, np.random.default_rng(0))
    assert generations == [2048] * 4
    assert len({c.key for c in chosen}) == 64
    drawn = [c for c in chosen if np.isnan(c.score)]
    assert len(drawn) == round(0.05 * 64) == 3  # ε
    assert strategy.model is not None
    ranked = [c for c in chosen if not np.isnan(c.score)]
    np.testing.assert_allclose(_scores(strategy.model, space, ranked), [c.score for c in ranked], atol=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_names_of_strategies(name: str, space: Space) -> None:
    assert name in strategy_names()
    if name.startswith("xgb"):
        pytest.importorskip("xgboost", reason="an optional dependency")
    first, second = make_strategy(name), make_strategy(name)
    assert first is not second
    for option, value in PRESETS[name].options.items():
        assert getattr(first, option) == value
    proposed = []
    for strategy in (first, second):
        if isinstance(strategy, Gradient):
            strategy.descent = replace(_descent(strategy), steps=5)
        if isinstance(strategy, AdaTune):
            strategy.steps = 5
        known = _observed(strategy, space)
        proposed.append([c.key for c in strategy.propose(space, known, 8, np.random.default_rng(1))])
    assert proposed[0] == proposed[1]
    assert len(set(proposed[0])) == 8


def test_options_that_contradict_a_preset_are_named() -> None:
    with pytest.raises(InvalidOption, match=r"strategy felix: neighbours=1024 contradicts the preset.*neighbours=0"):
        make_strategy("felix", neighbours=1024)
    with pytest.raises(InvalidOption, match=r"strategy ansor: trials_per_round=16 contradicts.*trials_per_round=64"):
        make_strategy("ansor", trials_per_round=16)
    with pytest.raises(InvalidOption, match=r"strategy felix: trees=0 contradicts.*trees=False"):
        make_strategy("felix", trees=0)
    assert isinstance(make_strategy("felix", seeds=8, fresh=1), Gradient)
    strategy = make_strategy("ansor", paths=2)
    assert isinstance(strategy, Evolutionary)
    assert (strategy.paths, strategy.population) == (2, 2048)


def _share_of_random(strategy: AdaTune, space: Space, count: int = 40) -> float:
    chosen = strategy.propose(space, _observed(strategy, space), count, np.random.default_rng(0))
    assert len({c.key for c in chosen}) == count
    return sum(c.origin == "random" for c in chosen) / count


@pytest.mark.parametrize("surrogate", ["forest", "xgboost"])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5])
def test_a_fixed_epsilon_is_the_share_of_random_candidates(surrogate: str, epsilon: float, space: Space) -> None:
    if surrogate == "xgboost":
        pytest.importorskip("xgboost", reason="an optional dependency")
    strategy = AdaTune(chains=32, steps=6, surrogate=surrogate, epsilon=epsilon)
    assert _share_of_random(strategy, space) == pytest.approx(epsilon)


def test_the_contextual_epsilon_is_the_mean_deviation_of_random_plans(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[list[Candidate]]()
    improvement = adatune_module._Forest.improvement

    def watched(self: Any, space: Space, candidates: list[Candidate]) -> tuple[np.ndarray, np.ndarray]:
        gains, sigmas = improvement(self, space, candidates)
        if any(c.origin == "plan" for c in candidates):
            asked.append(candidates)
            return gains, np.linspace(0.2, 0.4, len(candidates))
        return gains, np.ones_like(sigmas)  # of points that the chains visit, which must not count

    monkeypatch.setattr(adatune_module._Forest, "improvement", watched)
    strategy = AdaTune(chains=32, steps=6, plans=10)
    share = _share_of_random(strategy, space)
    (plans,) = asked
    assert len({c.key for c in plans}) == 10
    assert {c.origin for c in plans} == {"plan"}
    assert not {c.key for c in plans} & {m.candidate.key for m in _measured(space, 24)}
    assert share == pytest.approx(0.3)


def test_the_forest_is_less_certain_far_from_measurements(space: Space) -> None:
    strategy = AdaTune(chains=32, steps=6)
    known = _observed(strategy, space, 64)
    forest = adatune_module._Forest(strategy.samples(space), 40, 0, jackknife=False)
    _, at_measured = forest.improvement(space, [c for _, c in known.best])
    plans = Random().propose(space, known, 64, np.random.default_rng(9).spawn(1)[0])
    _, at_random = forest.improvement(space, plans)
    expected = strategy._share_of_random(space, forest, known, np.random.default_rng(9))
    assert 0 < at_measured.mean() < at_random.mean()
    assert expected == pytest.approx(at_random.mean())  # the same draw


def test_the_jackknife_gives_the_error_of_a_mean_of_bootstraps() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 2)) * [1.0, 3.0]
    counts = rng.multinomial(30, np.full(30, 1 / 30), size=20_000).astype(float)
    means = counts @ values / 30  # "trees" that predict the mean of their samples
    expected = values.std(axis=0) / np.sqrt(30)
    assert adatune_module.jackknife_error(means, counts) == pytest.approx(expected, rel=0.1)
    assert adatune_module.jackknife_error(means.std(axis=0) * rng.normal(size=(20, 2)), counts[:20]).min() >= 0
    assert not adatune_module.jackknife_error(np.ones((20, 2)), counts[:20]).any()


def test_the_jackknife_is_smaller_than_the_deviation_of_the_trees(space: Space) -> None:
    sigmas = []
    for jackknife in (False, True):
        strategy = AdaTune(trees=200, jackknife=jackknife)
        known = _observed(strategy, space, 64)
        forest = strategy._surrogate(strategy.samples(space), 0)
        plans = Random().propose(space, known, 64, np.random.default_rng(9))
        sigmas.append(forest.improvement(space, plans)[1])
    assert 0 < sigmas[1].mean() < sigmas[0].mean()


def test_annealing_stops_once_the_best_points_stay(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[int]()

    def unmoved(chains: list[Candidate], *_: object) -> list[Candidate]:
        steps.append(len(chains))
        return chains

    monkeypatch.setattr(adatune_module, "_moved", unmoved)
    for patience, expected in ((None, 40), (5, 5), (100, 40)):
        strategy = AdaTune(chains=16, steps=40, patience=patience, epsilon=0.0)
        strategy.propose(space, _observed(strategy, space), 8, np.random.default_rng(0))
        assert len(steps) == expected
        steps.clear()
    with pytest.raises(InvalidOption, match=r"patience.* 0"):
        AdaTune(patience=0)


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_chains_start_where_they_ended(persistent: bool, space: Space) -> None:
    strategy = AdaTune(chains=32, steps=0, epsilon=0.0, persistent=persistent)
    known = _observed(strategy, space)
    batches = [strategy.propose(space, known, 8, np.random.default_rng(seed)) for seed in (0, 1)]
    ends = {c.key for c in strategy._ends.get(space.task.key, ())}
    assert len(ends) == (32 if persistent else 0)
    assert ({c.key for some in batches for c in some} <= ends) is persistent
    strategy.begin(CostModel())
    assert not strategy._ends


def test_boosted_trees_cannot_have_a_contextual_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match=r"AdaTune: a contextual ε needs the variance .*set epsilon"):
        AdaTune(surrogate="xgboost")
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingDependency, match=r"adatune.*xgboost.*pip install xgboost"):
        AdaTune(surrogate="xgboost", epsilon=0.05)
    with pytest.raises(InvalidOption, match=r"surrogate: 'svm' is not a surrogate"):
        AdaTune(surrogate="svm")
    with pytest.raises(InvalidOption, match=r"strategy rfei\+csa\+ae: epsilon=0.5 contradicts.*epsilon=None"):
        make_strategy("rfei+csa+ae", epsilon=0.5)


def test_boosted_trees_rank_candidates(space: Space) -> None:
    pytest.importorskip("xgboost", reason="an optional dependency")
    strategy = AdaTune(surrogate="xgboost", epsilon=0.0, trees=100)
    known = _observed(strategy, space, 64)
    boosted = adatune_module._Boosted(strategy.samples(space), 100, 0)
    speeds, sigmas = boosted.improvement(space, [c for _, c in known.best])
    assert not sigmas.any()
    assert np.corrcoef(speeds, [1.0 / seconds for seconds, _ in known.best])[0, 1] > 0.9


def test_the_variants_of_adatunes_ablation_differ_in_one_part_each() -> None:
    names = ("xgb+sa+de", "rfei+sa+de", "rfei+csa+de", "rfei+csa+ae")
    parts = [PRESETS[name].options for name in names]
    changed = [
        {option for option in ("surrogate", "epsilon", "timing") if one[option] != other[option]}
        for one, other in itertools.pairwise(parts)
    ]
    assert changed == [{"surrogate"}, {"epsilon"}, {"timing"}]


def test_a_run_times_candidates_as_its_strategy_says() -> None:
    task = make_task(workloads.ALL["matmul_relu"](), resolve_target("simulated:cpu"), name="dense")
    seconds = {}
    for name in ("rfei+csa+ae", "rfei+csa+de", "random"):
        config = RunConfig.checked(
            target="simulated:cpu",
            precision="float32",
            effort="quick",
            seed=0,
            space="default",
            threads=None,
            compare=False,
            strategy=name,
            rounds=1,
            trials=None,
            seconds=None,
            progress=False,
        )
        with config.pool_factory(Deadline())() as pool:
            sketch = Space(task, "default").sketches[0]
            point = tuple(sketch.sample(1, seed=0)[0].tolist())
            (measured,) = pool.measure(task, [Candidate(sketch, point, float("nan"), "random")])
        seconds[name] = (measured.run_seconds - measured.seconds) / measured.seconds
    assert seconds["rfei+csa+ae"] == pytest.approx(2 * 50)  # calls
    assert seconds["rfei+csa+de"] == pytest.approx(500)
    assert seconds["random"] * measured.seconds == pytest.approx(3 * 5e-4)


def test_options_of_strategies_by_name() -> None:
    strategy = make_strategy("gradient", seeds=64)
    assert isinstance(strategy, Gradient)
    assert strategy.seeds == 64
    for wrong in ("gradient", "felix"):
        with pytest.raises(InvalidOption, match=rf"strategy {wrong}: .*'temperature'.*help\(felixlike.search.Gradient"):
            make_strategy(wrong, temperature=1.0)
    with pytest.raises(InvalidOption, match=r"strategy: got the options seeds for a strategy that exists already"):
        make_strategy(Gradient(), seeds=4)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Gradient(diversify=1), "Gradient: .*diversify.*bool"),  # type: ignore[arg-type]
        (lambda: Gradient(trials_per_round=0), "Gradient: .*trials_per_round.*≥ 1.* 0\\b"),
        (lambda: Gradient(scheduling=2.0), "Gradient: .*scheduling.*Scheduling"),  # type: ignore[arg-type]
        (lambda: Gradient(descent=40), "Gradient: .*descent.*Descent"),  # type: ignore[arg-type]
        (lambda: Descent(keep_every=0), "Descent: .*keep_every.* 0\\b"),
        (lambda: Descent(penalty=-1.0), "Descent: .*penalty.*-1.0"),
        (lambda: Random(trials_per_round=1.5), "Random: .*trials_per_round.*1.5"),  # type: ignore[arg-type]
        (lambda: Scheduling(alpha=2.0), "Scheduling: .*alpha.*2.0"),
        (lambda: Scheduling(similarity=0.0), "Scheduling: .*similarity.*0.0"),
        (lambda: Scheduling(window=0), "Scheduling: .*window.* 0\\b"),
    ],
)
def test_options_out_of_range_are_named(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        make()


@dataclass(frozen=True)
class Mine(Strategy):
    """A strategy of another package: a frozen dataclass, with an attribute in place of an option."""

    first: int = 0
    trials_per_round = 3

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        return draw(space, count, known.seen, rng, origin="mine")


def test_own_strategies_set_the_size_of_a_round() -> None:
    task = make_task(workloads.ALL["matmul_relu"](), resolve_target("simulated:cpu"), name="dense")
    with records.open() as store, SimulatedPool("simulated:cpu") as pool:
        session = Session([task], strategy=Mine(), model=CostModel(), pool=pool, store=store, space="default")
        session.run(Budget(rounds=2))
    assert session.states[0].trials == 6


def test_a_round_has_as_many_candidates_as_the_strategy_says() -> None:
    task = make_task(workloads.ALL["matmul_relu"](), resolve_target("simulated:cpu"), name="dense")
    for trials, expected in ((None, 8), (24, 24)):
        with records.open() as store, SimulatedPool("simulated:cpu") as pool:
            session = Session(
                [task],
                strategy=Random(trials_per_round=trials),
                model=CostModel(),
                pool=pool,
                store=store,
                space="default",
            )
            session.run(Budget(rounds=1))
            assert session.states[0].trials == expected
            again = Session(
                [task],
                strategy=Random(trials_per_round=trials),
                model=CostModel(),
                pool=pool,
                store=store,
                space="default",
            )
            again.run(Budget(rounds=1))  # the store has this round
            assert again.states[0].trials == 0
