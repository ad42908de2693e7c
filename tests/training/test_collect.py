"""`collect` samples all sketches, half near the best, resumes from a store, and continues after failing tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import made_up
import numpy as np
import pytest
import torch
from torch import nn

from felixlike import records
from felixlike.cli import main
from felixlike.errors import InvalidWeights
from felixlike.frontend import Task
from felixlike.hardware import resolve_target
from felixlike.measure import Limits, MeasurePool, Timing
from felixlike.search import Candidate, Gradient, Observations, Space, make_strategy
from felixlike.search.descent import Descent
from felixlike.search.strategy import Measured
from felixlike.training.collect import Wanted, collect
from felixlike.training.drawing import at_random, near_best
from felixlike.training.samples import read


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(made_up.tasks()[0], "all")


@pytest.fixture(scope="module")
def pool() -> Iterator[MeasurePool]:
    quick = Limits(timing=Timing(batch_seconds=1e-4, max_batches=2, turns=1))
    with MeasurePool(resolve_target("cpu"), limits=quick, waiting=16) as opened:
        yield opened


def test_random_candidates_are_new_and_cover_every_sketch(space: Space) -> None:
    rng = np.random.default_rng(0)
    first = at_random(space.symbolic, Observations(), 24, rng)
    assert len({c.key for c in first}) == 24
    assert {c.sketch.key for c in first} == {s.key for s in space.symbolic}
    more = at_random(space.symbolic, Observations({c.key for c in first}), 24, rng)
    assert not {c.key for c in first} & {c.key for c in more}


def test_a_small_space_is_exhausted_without_an_error(space: Space) -> None:
    sketch = min(space.symbolic, key=lambda s: math.prod(len(v.choices) for v in s.variables))
    candidates = at_random([sketch], Observations(), 10**4, np.random.default_rng(0))
    assert 0 < len(candidates) < 10**4
    assert not at_random([sketch], Observations({c.key for c in candidates}), 4, np.random.default_rng(1))


def test_offspring_are_valid_new_and_faster_than_the_median(space: Space) -> None:
    rng = np.random.default_rng(0)
    known = Observations()
    for candidate in at_random(space.symbolic, known, 48, rng):
        (seconds,) = made_up.seconds(candidate.sketch, np.array([candidate.point]))
        known.add(candidate, seconds)
    offspring = near_best(space.symbolic, known, 24, rng)
    assert len({c.key for c in offspring}) == len(offspring) == 24
    assert not {c.key for c in offspring} & known.seen
    times = []
    for candidate in offspring:
        point = np.array([candidate.point])
        assert candidate.sketch.valid(point).all()
        times += made_up.seconds(candidate.sketch, point)
    assert np.median(times) < np.median([seconds for seconds, _ in known.best])


def test_there_are_no_offspring_without_observations(space: Space) -> None:
    assert near_best(space.symbolic, Observations(), 4, np.random.default_rng(0)) == []


def test_collecting_resumes_from_a_store(pool: MeasurePool, tmp_path: Path) -> None:
    target = resolve_target("cpu")
    workloads = [("product", lambda: (nn.Linear(24, 40), (torch.rand(16, 24),))), ("broken", lambda: (None, None))]
    with records.open(tmp_path / "s.sqlite") as store:
        first = collect(workloads, store, pool, target, Wanted(candidates=20))
        assert [r.problem == "" for r in first] == [True, False]
        assert sum(first[0].ended.values()) == store.count() == 20
        second = collect(workloads[:1], store, pool, target, Wanted(candidates=26))
        assert (second[0].had, sum(second[0].ended.values())) == (20, 6)
        assert second[0].best <= first[0].best
        third = collect(workloads[:1], store, pool, target, Wanted(candidates=26))
        assert not third[0].ended
        samples = read([store])
    assert len(samples) == 26
    assert len(samples.workloads[0].parts) > 1


def test_a_strategy_proposes_in_both_design_spaces_and_learns(pool: MeasurePool, tmp_path: Path) -> None:
    learned: list[tuple[bool, int]] = []

    class Followed(Gradient):
        def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
            super().observe(space, measured, recalled=recalled)
            learned.append((recalled, len(measured)))

    strategy = Followed(pool=32, seeds=4, neighbours=32, generations=1, descent=Descent(steps=2))
    workloads = [("product", lambda: (nn.Linear(24, 40), (torch.rand(16, 24),)))]
    with records.open(tmp_path / "s.sqlite") as store:
        (first,) = collect(workloads, store, pool, resolve_target("cpu"), Wanted(candidates=20, strategy=strategy))
        (second,) = collect(workloads, store, pool, resolve_target("cpu"), Wanted(candidates=28, strategy=strategy))
        (workload,) = read([store]).workloads
    assert (first.problem, second.problem) == ("", "")
    assert learned[:2] == [(True, 0), (True, 0)]
    assert sum(count for recalled, count in learned[2:4] if not recalled) == 20
    assert all(count > 0 for _, count in learned[2:4])
    assert sum(count for recalled, count in learned[4:] if recalled) == sum(first.ended.values()) == 20
    assert (second.had, len(workload)) == (20, 28)
    assert {part.own for part in workload.parts} == {True, False}
    assert strategy.model is None  # each search has a copy


def test_weights_that_cannot_be_read_end_collecting(pool: MeasurePool, tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_text("not weights")
    wanted = Wanted(strategy=make_strategy("gradient"), weights=tmp_path / "w.pt")
    workloads = [("product", lambda: (nn.Linear(8, 8), (torch.rand(8, 8),)))]
    with records.open(tmp_path / "s.sqlite") as store, pytest.raises(InvalidWeights, match=r"w\.pt"):
        collect(workloads, store, pool, resolve_target("cpu"), wanted)


def test_a_failing_task_does_not_end_collecting(
    pool: MeasurePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(task: Task, name: str) -> Any:
        raise TypeError("a rule has a bug")

    monkeypatch.setattr("felixlike.training.collect.Space", fails)
    with records.open(tmp_path / "s.sqlite") as store:
        workloads = [("product", lambda: (nn.Linear(8, 8), (torch.rand(8, 8),)))]
        (result,) = collect(workloads, store, pool, resolve_target("cpu"), Wanted())
    assert result.problem == "TypeError: a rule has a bug"


def test_the_commands_collect_train_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, workload_list, weights = tmp_path / "s.sqlite", tmp_path / "w.txt", tmp_path / "w.pt"
    workload_list.write_text("dense rows=16 inputs=24 outputs=32\nsoftmax rows=16 columns=24\n")
    assert main(["collect", str(store), "--workloads", str(workload_list), "--candidates", "8", "--part", "1/2"]) == 0
    captured = capsys.readouterr()
    assert "8 candidates of 1 task measured" in captured.out
    assert "1: dense rows=16 inputs=24 outputs=32: " in captured.err
    made_up.write(store, count=6)
    assert main(["train", str(store), "--output", str(weights), "--steps", "4", "--no-operators"]) == 0
    assert f"Saved to {weights}." in capsys.readouterr().out
    assert main(["evaluate", str(store), "--weights", str(weights)]) == 0
    table = capsys.readouterr().out
    assert "| workload | candidates | device | rank correlation | top-1 | top-5 | median |" in table
    assert f"mean of {1 + len(made_up.tasks())}" in table


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["collect"], "collect: .*STORE"),
        (["collect", "s.sqlite", "--part", "3/2"], "--part .*3/2"),
        (["collect", "s.sqlite", "--workloads", "absent.txt"], "absent.txt"),
        (["collect", "s.sqlite", "--cores", "0"], r"--cores .*\b0\b"),
        (["collect", "s.sqlite", "--from", "descent"], "strategy: .*descent"),
        (["collect", "s.sqlite", "--weights", "text.sqlite"], "--weights .*--from"),
        (["collect", "s.sqlite", "--from", "gradient", "--weights", "text.sqlite"], "text.sqlite: .*weights"),
        (["train", "empty.sqlite", "--output", "w.pt"], "empty.sqlite: .*two measured"),
        (["train", "absent.sqlite", "--output", "w.pt"], "absent.sqlite"),
        (["train", "empty.sqlite", "--output", "no/such/folder.pt"], "no/such"),
        (["train", "text.sqlite", "--output", "w.pt"], "text.sqlite"),
        (["evaluate", "empty.sqlite", "--weights", "absent.pt"], "absent.pt: "),
        (["evaluate", "empty.sqlite", "--weights", "text.sqlite"], "text.sqlite: .*weights"),
    ],
)
def test_bad_input_is_an_error(
    command: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    records.open("empty.sqlite").close()
    Path("text.sqlite").write_text("not a store")
    assert main(command) == 1
    assert re.search(words, capsys.readouterr().err)
    assert not Path("w.pt").exists()


def test_the_workloads_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--list", "--part", "2/100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 4
    assert all("=" in line for line in lines)


def test_observed_candidates_are_not_sampled(space: Space) -> None:
    sketch = space.symbolic[0]
    candidate = Candidate(sketch, tuple(sketch.sample(1, 0)[0].tolist()), float("nan"), "random")
    candidates = at_random([sketch], Observations({candidate.key}), 12, np.random.default_rng(0))
    assert candidate.key not in {c.key for c in candidates}
