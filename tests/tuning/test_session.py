"""`Session` with a fake pool: budgets, reproducibility, interrupts, stores and failures."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import workloads

from felixlike import costmodel, records
from felixlike._util.deadline import Deadline, OutOfTime
from felixlike.costmodel import CostModel
from felixlike.errors import ReferenceFailed, WorkerFailed
from felixlike.frontend import Task, make_task
from felixlike.hardware import device_name, resolve_target
from felixlike.measure import Measurement, Pool, Status
from felixlike.search import Candidate, Observations, Predicted, Random, Space, make_strategy
from felixlike.spaces.design import RULES, Rule
from felixlike.symbolic import Sketch, sketches
from felixlike.symbolic.replay.structure_cache import StructureCache
from felixlike.tuning import Budget, Event, How, Session, TaskState, choose
from felixlike.tuning import session as session_module


def _measurement(seconds: float, status: Status = Status.OK) -> Measurement:
    return Measurement(
        status=status,
        seconds=seconds if status is Status.OK else math.inf,
        repeats=(seconds,) * 3,
        spread=0.01,
        error=1e-7,
        message="" if status is Status.OK else "made up",
        build_seconds=0.0,
        run_seconds=0.0,
    )


class FakePool:
    """A fake pool.  rule: gives the measurements.  hook: called before each with the number of earlier ones."""

    def __init__(
        self, rule: Callable[[Candidate], Measurement] | None = None, hook: Callable[[int], None] | None = None
    ) -> None:
        self.rule = rule if rule is not None else lambda c: _measurement(1e-3 / (1 + sum(map(abs, c.point))))
        self.hook = hook if hook is not None else lambda _: None
        self.measured: list[tuple[str, str, tuple[int, ...]]] = []
        self.checked = 0
        self.devices = frozenset([device_name(resolve_target("cpu"))])

    def stream(
        self, task: Task, candidates: Iterable[Candidate], *, best: float | None = None
    ) -> Iterator[tuple[int, Measurement]]:
        for index, candidate in enumerate(candidates):
            self.hook(len(self.measured))
            self.measured.append((task.name, *candidate.key))
            yield index, self.rule(candidate)

    def check(self, task: Task, candidate: Any) -> Measurement:
        self.checked += 1
        return _measurement(math.nan)


@pytest.fixture(scope="module")
def tasks() -> tuple[Task, ...]:
    target = resolve_target("cpu")
    return (
        make_task(workloads.matmul(32, 16, 24), target, name="dense", weight=3),
        make_task(workloads.softmax(8, 12), target, name="softmax"),
        make_task(workloads.chain(), target, name="chain"),
    )


def _session(
    tasks: tuple[Task, ...],
    pool: FakePool,
    store: records.Store,
    *,
    seed: int = 0,
    strategy: str = "gradient",
    observe: Callable[[Event], None] | None = None,
    model: CostModel | None = None,
    space: str = "default",  # the "own" space has few schedules of these small tasks
) -> Session:
    return Session(
        tasks,
        strategy=make_strategy(strategy),
        model=CostModel(seed=seed) if model is None else model,
        pool=cast(Pool, pool),
        store=store,
        seed=seed,
        space=space,
        observe=observe,
    )


@pytest.mark.timeout(900)  # two runs of the gradient, which exceed the default limit on one shared core
def test_the_same_seed_measures_the_same_candidates(tasks: tuple[Task, ...]) -> None:
    runs = []
    for seed, rounds in ((1, 3), (1, 3), (2, 1)):
        pool = FakePool()
        with records.open() as store:
            _session(tasks[:1], pool, store, seed=seed).run(Budget(rounds=rounds))
        runs.append(pool.measured)
    assert len(runs[0]) == 3 * len(runs[2])
    assert runs[0] == runs[1]
    assert runs[0][: len(runs[2])] != runs[2]
    assert len(set(runs[0])) == len(runs[0])


def test_every_task_is_measured_and_every_measurement_is_recorded(tasks: tuple[Task, ...]) -> None:
    pool, events = FakePool(), list[Event]()
    with records.open() as store:
        session = _session(tasks, pool, store, observe=events.append)
        session.run(Budget(rounds=4))
        assert sum(1 for _ in store.measurements()) == len(pool.measured)
    assert {name for name, *_ in pool.measured} == {"dense", "softmax", "chain"}
    assert sum(name == "chain" for name, *_ in pool.measured) == 1  # it has one schedule only
    assert all(state.best is not None for state in session.states)
    assert len([e for e in events if e.measurement is not None]) == len(pool.measured)


@pytest.mark.parametrize(("least", "settled"), [(0.001, True), (0.0, False)])
def test_a_run_ends_when_rounds_gain_nothing(tasks: tuple[Task, ...], least: float, settled: bool) -> None:
    pool = FakePool(lambda _: _measurement(1e-3))
    with records.open() as store:
        session = _session(tasks[:2], pool, store, strategy="random")
        budget = Budget(rounds=8, least_gain=least)
        session.run(budget)
    assert session.settled is settled
    assert budget.spent_rounds == (6 if settled else 8)  # three for each task


@pytest.mark.parametrize("trials", [0, 1, 7, 20])
def test_trials_are_not_exceeded(tasks: tuple[Task, ...], trials: int) -> None:
    pool = FakePool()
    with records.open() as store:
        session = _session(tasks, pool, store, strategy="random")
        session.run(Budget(trials=trials))
        assert len(pool.measured) == trials
        choices = [choose(state, CostModel(), cast(Pool, pool)) for state in session.states]
    assert all(c.candidate is not None for c in choices)
    assert {c.how for c in choices} <= {How.MEASURED, How.UNMEASURED}
    assert sum(c.how is How.MEASURED for c in choices) == sum(s.trials > 0 for s in session.states)
    unmeasured = sum(c.how is How.UNMEASURED for c in choices)
    assert unmeasured <= pool.checked <= 6 * unmeasured


@dataclasses.dataclass
class Clock:
    """A fake clock that only the test advances."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def budget(self, **limits: Any) -> Budget:
        return Budget(**limits, started=self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A fake clock that budgets and deadlines read."""
    fake_clock = Clock()
    monkeypatch.setattr("felixlike.tuning.budget.time", fake_clock)
    monkeypatch.setattr("felixlike._util.deadline.time", fake_clock)
    return fake_clock


def test_the_time_limit_ends_a_run_between_candidates(tasks: tuple[Task, ...], clock: Clock) -> None:
    def spend(measured: int) -> None:
        if measured == 5:
            clock.now += 2000.0

    pool = FakePool(hook=spend)
    with records.open() as store:
        _session(tasks, pool, store).run(clock.budget(seconds=1000.0))
    assert len(pool.measured) == 6


def test_the_time_limit_is_shared_between_tasks(tasks: tuple[Task, ...], clock: Clock) -> None:
    """At 6 s a candidate, the first task measures 8 candidates; the second leaves time for the third."""

    def spend(_: int) -> None:
        clock.now += 6.0

    pool = FakePool(hook=spend)
    with records.open() as store:
        _session(tasks, pool, store, strategy="random").run(clock.budget(seconds=100.0))
    order = [name for name, *_ in pool.measured]
    assert list(dict.fromkeys(order)) == ["dense", "softmax", "chain"]
    assert order.count("dense") >= 8
    assert 4 <= order[: order.index("chain")].count("softmax") <= 6


def test_an_interrupt_keeps_all_measurements(tasks: tuple[Task, ...]) -> None:
    def interrupt(measured: int) -> None:
        if measured == 5:
            raise KeyboardInterrupt

    pool = FakePool(hook=interrupt)
    with records.open() as store:
        session = _session(tasks, pool, store)
        session.run(Budget(rounds=10))
        assert sum(1 for _ in store.measurements()) == 5
    assert session.interrupted
    assert session.states[0].best is not None
    assert len(session.states[0].known.seen) == 5


def test_a_run_continues_the_measurements_of_a_store(tasks: tuple[Task, ...], tmp_path: Path) -> None:
    first_pool, second_pool = FakePool(), FakePool()
    for pool, rounds in ((first_pool, 2), (second_pool, 4)):
        with records.open(tmp_path / "s.sqlite") as store:
            session = _session(tasks[:1], pool, store, strategy="random")
            session.run(Budget(rounds=rounds))
    assert len(first_pool.measured) == len(second_pool.measured) == 16
    assert not set(first_pool.measured) & set(second_pool.measured)
    assert len(session.states[0].known.seen) == len(first_pool.measured) + len(second_pool.measured)
    assert session.states[0].trials == len(second_pool.measured)


@pytest.mark.parametrize("stop", [3, 16, 21, 35])
def test_a_resumed_run_measures_the_same_as_an_uninterrupted_one(
    tasks: tuple[Task, ...], tmp_path: Path, stop: int
) -> None:
    def interrupt(count: int) -> None:
        if count == stop:
            raise KeyboardInterrupt

    uninterrupted = FakePool()
    with records.open() as store:
        _session(tasks[:1], uninterrupted, store, strategy="random").run(Budget(trials=40))
    first, second = FakePool(hook=interrupt), FakePool()
    with records.open(tmp_path / "s.sqlite") as store:
        _session(tasks[:1], first, store, strategy="random").run(Budget(trials=40))
        _session(tasks[:1], second, store, strategy="random").run(Budget(trials=40))
    assert len(first.measured) == stop
    assert sorted([*first.measured, *second.measured]) == sorted(uninterrupted.measured)


@pytest.mark.parametrize("limits", [{"rounds": 3}, {"trials": 21}, {"seconds": 60.0}])
def test_a_spent_budget_measures_nothing_and_a_larger_one_continues(
    limits: dict[str, Any], tasks: tuple[Task, ...], tmp_path: Path, clock: Clock
) -> None:
    def spend(_: int) -> None:
        clock.now += 10.0

    pools = []
    for factor in (1, 1, 2):
        budget = clock.budget(**{name: factor * limit for name, limit in limits.items()})
        pools.append(FakePool(hook=spend))
        with records.open(tmp_path / "s.sqlite") as store:
            session = _session(tasks[:1], pools[-1], store, strategy="random")
            session.run(budget)
            assert session.states[0].best is not None
    first, second, larger = (len(pool.measured) for pool in pools)
    assert second == 0
    assert first > 0
    assert larger == pytest.approx(first, abs=1)
    assert not set(pools[0].measured) & set(pools[2].measured)


def test_only_measurements_of_this_device_by_felixlike_are_counted(tasks: tuple[Task, ...]) -> None:
    pool, budget = FakePool(), Budget(trials=40)
    with records.open() as store:
        _session(tasks[:1], pool, store, strategy="random").run(Budget(trials=32))
        (other_device, taken_over, *_) = list(store.measurements())
        for point in range(8):
            store.append(tasks[0], dataclasses.replace(other_device, device="another", point=(point,)))
            store.append(tasks[0], dataclasses.replace(taken_over, felixlike="", time=float(point)))
        _session(tasks[:1], pool, store, strategy="random").run(budget)
    assert (budget.found_trials, budget.found_rounds, budget.spent_trials) == (32, 4, 40)


def test_the_best_and_a_sample_of_many_measurements_are_recalled(
    tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_ROUNDS", dataclasses.replace(session_module._ROUNDS, recalled=8))
    first, model = FakePool(), CostModel()
    with records.open() as store:
        _session(tasks[:1], first, store, strategy="random").run(Budget(trials=48))
        session = _session(tasks[:1], FakePool(), store, model=model)
        session.run(Budget(trials=48))
        seconds = sorted(r.measurement.seconds for r in store.measurements())
    (state,) = session.states
    assert len(state.known.seen) == 48
    assert [s for s, _ in state.known.best][:4] == seconds[:4]
    assert len(state.known.best) == len(model.dataset) == 8


def test_measurements_of_another_tuner_are_checked_before_they_are_chosen(tasks: tuple[Task, ...]) -> None:
    class FirstCheckFails(FakePool):
        def check(self, task: Task, candidate: Any) -> Measurement:
            super().check(task, candidate)
            return _measurement(math.nan, Status.WRONG if self.checked == 1 else Status.OK)

    with records.open() as store:
        _session(tasks[:1], FakePool(lambda _: dataclasses.replace(_measurement(1e-3), error=None)), store).run(
            Budget(trials=4)
        )
        session = _session(tasks[:1], FakePool(), store)
        session.run(Budget(trials=4))
    pool = FirstCheckFails()
    choice = choose(session.states[0], CostModel(), cast(Pool, pool))
    assert choice.how is How.MEASURED
    assert choice.candidate == session.states[0].known.best[1][1]
    assert choice.error == 1e-7
    assert pool.checked == 2


def test_concurrent_runs_share_a_store(tasks: tuple[Task, ...], tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    second = FakePool()

    def run_second(measured: int) -> None:
        if measured == 5:  # in the middle of the first run's round
            with records.open(path) as store:
                _session(tasks[:1], second, store, seed=1, strategy="random").run(Budget(rounds=2))

    first = FakePool(hook=run_second)
    with records.open(path) as store:
        _session(tasks[:1], first, store, strategy="random").run(Budget(rounds=2))
        stored = {(r.sketch, r.point) for r in store.measurements()}
    assert stored == {(sketch, point) for _, sketch, point in first.measured + second.measured}
    # The round that the first run had begun counts for the second.
    assert (len(first.measured), len(second.measured)) == (16, 8)


def test_a_clock_that_jumps_does_not_change_the_run(tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for clock in (lambda: 1e9, itertools.cycle([4e9, 0.0, -5.0, 1e300]).__next__):
        monkeypatch.setattr("time.time", clock)
        pool = FakePool()
        with records.open() as store:
            for rounds in (2, 4):
                _session(tasks[:1], pool, store, strategy="random").run(Budget(rounds=rounds, seconds=1e6))
            best = store.best(tasks[0])
            assert [(r.sketch, r.point) for r in store.measurements()] == [key[1:] for key in pool.measured]
        assert best is not None
        runs.append((pool.measured, best.point))
    assert runs[0] == runs[1]


def test_failures_are_counted_and_never_chosen(tasks: tuple[Task, ...]) -> None:
    def rule(candidate: Candidate) -> Measurement:
        wrong = candidate.point[-1] == 0
        return _measurement(1e-6 if wrong else 1e-3, Status.WRONG if wrong else Status.OK)

    pool = FakePool(rule)
    with records.open() as store:
        session = _session(tasks[:1], pool, store, strategy="random")
        session.run(Budget(rounds=3))
    (state,) = session.states
    assert state.failures["wrong"] == sum(point[-1] == 0 for *_, point in pool.measured) > 0
    choice = choose(state, CostModel(), cast(Pool, pool))
    assert choice.candidate is not None
    assert choice.candidate.point[-1] != 0


def test_unmeasured_schedules_that_are_slow_in_the_check_are_not_chosen(tasks: tuple[Task, ...]) -> None:
    class Slow(FakePool):
        def check(self, task: Task, candidate: Any) -> Measurement:
            super().check(task, candidate)
            times[candidate.key] = 0.01 if len(times) == 2 else 7.0
            return dataclasses.replace(_measurement(math.nan), run_seconds=times[candidate.key])

    times: dict[Any, float] = {}
    with records.open() as store:
        session = _session(tasks[:1], FakePool(), store)
    choice = choose(session.states[0], CostModel(), cast(Pool, Slow()))
    assert choice.how is How.UNMEASURED
    assert choice.candidate is not None
    assert times[choice.candidate.key] == 0.01


class Late(FakePool):
    """A fake pool that raises `OutOfTime` in its first `checks` checks and after `after` measurements."""

    def __init__(self, *, checks: int = 0, after: int = 1000) -> None:
        super().__init__(hook=self._raise_out_of_time)
        self.late_checks, self.after = checks, after

    def _raise_out_of_time(self, measured: int) -> None:
        if measured >= self.after:
            raise OutOfTime

    def check(self, task: Task, candidate: Any) -> Measurement:
        super().check(task, candidate)
        if self.late_checks:
            self.late_checks -= 1
            raise OutOfTime
        return _measurement(math.nan)


def test_the_deadline_keeps_measurements_and_counts_no_failures(tasks: tuple[Task, ...]) -> None:
    with records.open() as store:
        session = _session(tasks[:1], Late(after=5), store)
        budget = Budget(rounds=1, seconds=1000.0)
        session.run(budget)
        assert sum(1 for _ in store.measurements()) == 5
    (state,) = session.states
    assert state.trials == budget.spent_trials == len(state.known.best) == 5
    assert state.failures == {}
    assert budget.spent_rounds == 1


def test_a_search_that_is_out_of_time_proposes_nothing(tasks: tuple[Task, ...], clock: Clock) -> None:
    pool = FakePool()
    with records.open() as store:
        session = _session(tasks[:1], pool, store)
        propose = session.states[0].propose

        def propose_late(*arguments: Any) -> list[Candidate]:
            clock.now += 2000.0
            session.states[0].space.deadline.check()
            return propose(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TaskState, "propose", lambda _, *arguments: propose_late(*arguments))
            session.run(clock.budget(seconds=1000.0))
    assert pool.measured == []
    assert not session.states[0].faults


@pytest.mark.parametrize(("late", "how"), [(0, How.UNMEASURED), (1, How.UNMEASURED), (2, How.UNTUNED)])
def test_one_other_schedule_is_checked_after_the_deadline(tasks: tuple[Task, ...], late: int, how: How) -> None:
    pool = Late(checks=late)
    with records.open() as store:
        (state,) = _session(tasks[:1], pool, store).states
    choice = choose(state, CostModel(), cast(Pool, pool))
    assert choice.how is how
    if how is How.UNTUNED:
        assert choice.note == "the time was used up before a schedule of it was checked"
        assert pool.checked == 2
    else:
        assert state.predicted is not None
        assert choice.candidate in state.predicted[late:]


def test_after_the_deadline_one_structure_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(workloads.conv2d(), resolve_target("cpu"), name="conv2d")
    scored: list[tuple[str, int]] = []
    features = Space.features

    def counted_features(space: Space, sketch: Sketch, points: Any) -> Any:
        scored.append((sketch.key, len(sketch.by_structure(points))))
        return features(space, sketch, points)

    monkeypatch.setattr(Space, "features", counted_features)
    model = costmodel.load("cpu")
    proposals: dict[bool, list[Candidate]] = {}
    for late in (False, True):
        deadline = Deadline()
        deadline.move(0.0 if late else math.inf)
        space = Space(task, "default", deadline=deadline)
        scored.clear()
        proposals[late] = Predicted(model).propose(space, Observations(), 6, np.random.default_rng(0))
        assert len(scored) == (1 if late else len(space.symbolic))
        assert all(structures == 1 for _, structures in scored) or not late
    assert all(not math.isnan(candidate.score) for candidate in proposals[True])


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMEOUT])
def test_a_task_whose_candidates_all_fail_is_untuned(status: Status, tasks: tuple[Task, ...]) -> None:
    class AllFail(FakePool):
        def check(self, task: Task, candidate: Any) -> Measurement:
            super().check(task, candidate)
            untuned = not isinstance(candidate, Candidate)
            return _measurement(math.nan, Status.OK if untuned else status)

    pool = AllFail(lambda _: _measurement(1.0, status))
    with records.open() as store:
        session = _session(tasks[:1], pool, store)
        session.run(Budget(rounds=1))
    choice = choose(session.states[0], CostModel(), cast(Pool, pool))
    assert choice.how is How.UNTUNED
    assert choice.candidate is None
    assert choice.note == f"no schedule of it passed the check (6 × {status.value})"
    assert choice.late == (status is Status.TIMEOUT)  # such a model is not kept for later runs


def test_a_task_without_a_reference_is_untuned(tasks: tuple[Task, ...]) -> None:
    def fail(_: int) -> None:
        raise ReferenceFailed("it takes too long", where="dense")

    with records.open() as store:
        session = _session(tasks[:1], FakePool(hook=fail), store)
        session.run(Budget(rounds=3))
    choice = choose(session.states[0], CostModel(), cast(Pool, FakePool()))
    assert choice.how is How.UNTUNED
    assert "it takes too long" in choice.note


def _raise_type_error(*_: Any, **__: Any) -> Any:
    raise TypeError("ours")


def test_a_failing_rule_leaves_the_sketches_of_metaschedule(
    tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "llvm", (Rule("mistaken", _raise_type_error, ()),))
    pool = FakePool()
    with records.open() as store:
        session = _session(tasks, pool, store, strategy="random", space="best")
        session.run(Budget(rounds=3))
    for state in session.states:
        assert state.faults == ["TypeError: ours"]
        assert state.best is not None
        assert {s.key for s in state.space.sketches} == {s.key for s in sketches(state.task)}


def test_an_unreadable_sketch_is_skipped(tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    pool, (product, *_) = FakePool(), tasks
    unreadable = sketches(product)[1]
    original, label = vars(StructureCache)["reason"].func, repr(unreadable)
    reason = property(lambda cache: _raise_type_error() if cache.scheduler.label == label else original(cache))
    monkeypatch.setattr(StructureCache, "reason", reason)
    with records.open() as store:
        session = _session(tasks, pool, store, strategy="random")
        session.run(Budget(rounds=3))
    assert [state.faults for state in session.states] == [["TypeError: ours"], [], []]
    assert {s.key for s in session.states[0].space.sketches} == {s.key for s in sketches(product)} - {unreadable.key}
    assert all(state.best is not None for state in session.states)


def test_without_formulas_tasks_are_sampled(tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool()
    monkeypatch.setattr("felixlike.search.space.formulas", _raise_type_error)
    with records.open() as store:
        session = _session(tasks, pool, store, strategy="gradient")
        session.run(Budget(rounds=6))
    for state in session.states:
        assert state.faults == ["TypeError: ours"]
        assert state.best is not None
        assert state.space.symbolic == ()
        assert state.space.non_symbolic == state.space.sketches != ()
    assert len(pool.measured) > 3 * 8


def test_a_failing_strategy_ends_the_search_of_one_task(
    tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, product, draws = FakePool(), tasks[0], Random.propose

    def propose(strategy: Any, space: Space, *others: Any) -> list[Candidate]:
        return _raise_type_error() if space.task is product else draws(strategy, space, *others)

    monkeypatch.setattr(Random, "propose", propose)
    with records.open() as store:
        session = _session(tasks, pool, store, strategy="random")
        session.run(Budget(rounds=3))
        choices = [choose(state, CostModel(), cast(Pool, pool)) for state in session.states]
    assert [state.faults for state in session.states] == [["TypeError: ours"], [], []]
    assert [c.how for c in choices] == [How.UNTUNED, How.MEASURED, How.MEASURED]


def test_a_failing_schedule_keeps_earlier_measurements(tasks: tuple[Task, ...]) -> None:
    product, default_rule = tasks[0], FakePool().rule

    def rule(candidate: Candidate) -> Measurement:
        return (
            _raise_type_error()
            if candidate.sketch.task is product and len(pool.measured) > 3
            else default_rule(candidate)
        )

    pool = FakePool(rule)
    with records.open() as store:
        session = _session(tasks, pool, store, strategy="random")
        session.run(Budget(rounds=3))
    first, *others = session.states
    assert first.faults == ["TypeError: ours"]
    assert first.trials == 3
    assert first.best is not None
    assert all(state.best is not None and not state.faults for state in others)


@pytest.mark.parametrize("error", [WorkerFailed("it died"), OSError(28, "No space left on device")])
def test_errors_of_the_pool_end_the_search(tasks: tuple[Task, ...], error: Exception) -> None:
    def rule(_: Candidate) -> Measurement:
        raise error

    with records.open() as store, pytest.raises(type(error)):
        _session(tasks, FakePool(rule), store).run(Budget(rounds=3))
