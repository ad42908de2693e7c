"""Choices by prediction need one check a task, and none if an earlier run has stored its choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import workloads

from felixlike.codegen import KernelObject
from felixlike.costmodel import CostModel
from felixlike.errors import ReferenceFailed
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.measure import Measurement, Pool, Status
from felixlike.search import Candidate
from felixlike.tuning import Choice, How, Predictions, TaskState, check_ahead, choose


class Checks:
    """A fake pool whose `check` returns the status that `rule` gives."""

    def __init__(self, rule: Callable[[Task, Candidate], Status | ReferenceFailed] | None = None) -> None:
        self.rule = rule if rule is not None else lambda task, candidate: Status.OK
        self.together, self.alone = list[Candidate](), list[Candidate]()

    def checks(self, candidates: Iterable[tuple[Task, Candidate]]) -> Iterator[tuple[int, Any]]:
        for index, (task, candidate) in enumerate(candidates):
            self.together.append(candidate)
            yield index, self._outcome(task, candidate)

    def check(self, task: Task, candidate: Candidate) -> Any:
        self.alone.append(candidate)
        return self._outcome(task, candidate)

    def _outcome(self, task: Task, candidate: Candidate) -> Any:
        status = self.rule(task, candidate)
        if isinstance(status, ReferenceFailed):
            return status
        return Measurement(status, seconds=math.nan, error=1e-7, run_seconds=1e-3)


@pytest.fixture(scope="module")
def tasks() -> tuple[Task, ...]:
    target = resolve_target("cpu")
    functions = {"dense": workloads.matmul(32, 16, 24), "softmax": workloads.softmax(8, 12), "chain": workloads.chain()}
    return tuple(make_task(function, target, name=name) for name, function in functions.items())


@pytest.fixture(autouse=True)
def folder(own_cache: Path) -> Path:
    return own_cache / "predicted"


def _run(
    tasks: Iterable[Task],
    pool: Checks,
    *,
    seed: int = 0,
    model: CostModel | None = None,
    space: str = "best",
    objects: dict[str, KernelObject] | None = None,
) -> list[Choice]:
    import numpy as np

    model = CostModel(seed=1, pretrained=True) if model is None else model
    states = [TaskState(task, np.random.default_rng(seed), space_name=space) for task in tasks]
    predictions = Predictions(model, seed=seed, objects=objects)
    check_ahead(states, model, cast(Pool, pool), predictions)
    return [choose(state, model, cast(Pool, pool), predictions) for state in states]


def _points(choices: Iterable[Choice]) -> list[tuple[Any, ...]]:
    return [(*c.candidate.key, c.candidate.sketch.index, c.error) for c in choices if c.candidate is not None]


def _raise(*_: object, **__: object) -> Any:
    raise AssertionError("this was to be known already")


def test_each_task_is_checked_once(tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.search.space.relax", _raise)
    pool = Checks()
    choices = _run(tasks, pool)
    assert [c.how for c in choices] == [How.UNMEASURED] * 3
    assert [c.candidate for c in choices] == pool.together
    assert not pool.alone


@pytest.mark.parametrize("space", ["best", "default"])
def test_the_next_run_makes_no_sketches_and_checks_nothing(
    tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    first = _run(tasks, Checks(), space=space)
    pool = Checks()
    with monkeypatch.context() as patch:
        patch.setattr("felixlike.search.space.sketches", _raise)
        second = _run(tasks, pool, space=space)
    assert _points(second) == _points(first)
    for choice, repeated in zip(first, second, strict=True):
        assert choice.candidate is not None
        assert repeated.candidate is not None
        assert str(choice.candidate.module()) == str(repeated.candidate.module())
    assert not pool.together
    assert not pool.alone


@pytest.mark.parametrize("change", [{"seed": 1}, {"model": CostModel(seed=2, pretrained=True)}, {"space": "default"}])
def test_other_seeds_models_and_spaces_have_separate_entries(tasks: tuple[Task, ...], change: dict[str, Any]) -> None:
    _run(tasks, Checks())
    pool = Checks()
    _run(tasks, pool, **change)
    assert len(pool.together) == 3


@pytest.mark.parametrize(("precision", "checked"), [("bfloat16", 1), ("float32", 3)])
def test_candidates_without_a_score_are_all_checked_unless_they_round(
    tasks: tuple[Task, ...], precision: str, checked: int
) -> None:
    """Rules offer sketches that round where they are faster, so the first one is taken."""
    import numpy as np

    state = TaskState(tasks[0], np.random.default_rng(0))
    sketch = cast("Any", SimpleNamespace(precision=precision, key="sketch"))
    state.predicted = [Candidate(sketch, (n,), math.nan, "random") for n in range(3)]
    pool = Checks()
    choice = choose(state, CostModel(seed=1, pretrained=True), cast(Pool, pool))
    assert choice.candidate is not None
    assert choice.candidate.point == (0,)
    assert len(pool.alone) == checked


def test_other_versions_of_the_code_have_separate_entries(
    tasks: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tasks, Checks())
    monkeypatch.setattr("felixlike._util.cache.sources", lambda: "another version")
    pool = Checks()
    _run(tasks, pool)
    assert len(pool.together) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"point": [', '"point": [3, '),
        lambda text: text.replace('"postprocessors": ["', '"postprocessors": ["No'),
        lambda text: text.replace('"trace": "', '"trace": "['),
    ],
)
def test_a_damaged_entry_counts_as_absent(tasks: tuple[Task, ...], folder: Path, damage: Callable[[str], str]) -> None:
    first = _run(tasks[:1], Checks())
    (file,) = folder.iterdir()
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    pool = Checks()
    second = _run(tasks[:1], pool)
    assert len(pool.together) == 1
    assert _points(second) == _points(first)
    assert file.read_text() == text


def test_machine_code_is_kept_with_the_choice(tasks: tuple[Task, ...]) -> None:
    code = {"dense": KernelObject("[1]", b"\x00\xff"), "chain": KernelObject("[2]", b"\x7fELF")}
    _run(tasks, Checks(), objects=dict(code))
    later: dict[str, KernelObject] = {}
    _run(tasks, Checks(), objects=later)
    assert later == code
    named = [replace(task, name=f"other_{task.name}") for task in tasks]  # the code has the first names as symbols
    others: dict[str, KernelObject] = {}
    pool = Checks()
    _run(named, pool, objects=others)
    assert not others
    assert not pool.together


@pytest.mark.parametrize(
    ("before", "after"),
    [("AP8B", "AP8C"), ("AP8B", "A-8B"), ("a module", "no module"), ('"digest"', '"none"')],
)
def test_damaged_machine_code_is_not_used(tasks: tuple[Task, ...], folder: Path, before: str, after: str) -> None:
    """The choice is: it needs no check."""
    _run(tasks[:1], Checks(), objects={"dense": KernelObject("a module", b"\x00\xff\x01")})
    (file,) = folder.iterdir()
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    objects: dict[str, KernelObject] = {}
    pool = Checks()
    _run(tasks[:1], pool, objects=objects)
    assert not objects
    assert not pool.together


def test_the_next_best_is_chosen_if_a_check_fails(tasks: tuple[Task, ...]) -> None:
    def rule(task: Task, candidate: Candidate) -> Status:
        return Status.WRONG if candidate in pool.together else Status.OK

    pool = Checks(rule)
    (choice,) = _run(tasks[:1], pool)
    assert len(pool.together) == len(pool.alone) == 1
    assert choice.candidate == pool.alone[0] != pool.together[0]
    assert choice.candidate is not None
    assert choice.candidate.score <= pool.together[0].score


def test_a_task_without_a_reference_is_checked_once(tasks: tuple[Task, ...], folder: Path) -> None:
    pool = Checks(lambda task, _: ReferenceFailed("it takes too long", where=task.name))
    (choice,) = _run(tasks[:1], pool)
    assert choice.how is How.UNTUNED
    assert "it takes too long" in choice.note
    assert not pool.alone
    assert not folder.exists()
