"""Collecting measures every space, half near the best, goes on where it stopped, and survives single failures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up
import numpy as np
import pytest
import torch
from torch import nn

from felixlike import records
from felixlike.cli import main
from felixlike.frontend import Task
from felixlike.hardware import resolve_target
from felixlike.measure import Limits, MeasurePool, Timing
from felixlike.search import Candidate, Observations, Space
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


def test_random_candidates_are_of_every_sketch_and_new(space: Space) -> None:
    rng = np.random.default_rng(0)
    first = at_random(space.understood, Observations(), 24, rng)
    assert len({c.key for c in first}) == 24
    assert {c.sketch.key for c in first} == {s.key for s in space.understood}
    more = at_random(space.understood, Observations({c.key for c in first}), 24, rng)
    assert not {c.key for c in first} & {c.key for c in more}


def test_a_small_space_is_exhausted_without_an_error(space: Space) -> None:
    sketch = min(space.understood, key=lambda s: math.prod(len(v.choices) for v in s.variables))
    found = at_random([sketch], Observations(), 10**4, np.random.default_rng(0))
    assert 0 < len(found) < 10**4
    assert not at_random([sketch], Observations({c.key for c in found}), 4, np.random.default_rng(1))


def test_offspring_are_valid_new_and_like_their_parents(space: Space) -> None:
    rng = np.random.default_rng(0)
    known = Observations()
    for candidate in at_random(space.understood, known, 48, rng):
        (seconds,) = made_up.seconds(candidate.sketch, np.array([candidate.point]))
        known.add(candidate, seconds)
    found = near_best(space.understood, known, 24, rng)
    assert len({c.key for c in found}) == len(found) == 24
    assert not {c.key for c in found} & known.seen
    times = []
    for candidate in found:
        point = np.array([candidate.point])
        assert candidate.sketch.valid(point).all()
        times += made_up.seconds(candidate.sketch, point)
    assert np.median(times) < np.median([seconds for seconds, _ in known.best])


def test_nothing_is_near_when_nothing_is_known(space: Space) -> None:
    assert near_best(space.understood, Observations(), 4, np.random.default_rng(0)) == []


def test_collecting_goes_on_where_it_stopped(pool: MeasurePool, tmp_path: Path) -> None:
    target = resolve_target("cpu")
    workloads = [("product", lambda: (nn.Linear(24, 40), (torch.rand(16, 24),))), ("broken", lambda: (None, None))]
    with records.open(tmp_path / "s.sqlite") as store:
        first = collect(workloads, store, pool, target, Wanted(candidates=20))
        assert [r.problem == "" for r in first] == [True, False]
        assert sum(first[0].ended.values()) == store.count() == 20
        again = collect(workloads[:1], store, pool, target, Wanted(candidates=26))
        assert (again[0].had, sum(again[0].ended.values())) == (20, 6)
        assert again[0].best <= first[0].best
        nothing = collect(workloads[:1], store, pool, target, Wanted(candidates=26))
        assert not nothing[0].ended
        samples = read([store])
    assert len(samples) == 26
    assert len(samples.workloads[0].parts) > 1


def test_one_bad_task_does_not_end_it(pool: MeasurePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(task: Task, name: str) -> Any:
        raise TypeError("a rule has a bug")

    monkeypatch.setattr("felixlike.training.collect.Space", fails)
    with records.open(tmp_path / "s.sqlite") as store:
        workloads = [("product", lambda: (nn.Linear(8, 8), (torch.rand(8, 8),)))]
        (result,) = collect(workloads, store, pool, resolve_target("cpu"), Wanted())
    assert result.problem == "TypeError: a rule has a bug"


def test_the_commands_from_nothing_to_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, list_, weights = tmp_path / "s.sqlite", tmp_path / "w.txt", tmp_path / "w.pt"
    list_.write_text("dense rows=16 inputs=24 outputs=32\nsoftmax rows=16 columns=24\n")
    assert main(["collect", str(store), "--workloads", str(list_), "--candidates", "8", "--part", "1/2"]) == 0
    said = capsys.readouterr()
    assert "8 candidates of 1 task measured" in said.out
    assert "1: dense rows=16 inputs=24 outputs=32: " in said.err
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
        (["collect"], "no store is given"),
        (["collect", "s.sqlite", "--part", "3/2"], "--part is '3/2'"),
        (["collect", "s.sqlite", "--workloads", "absent.txt"], "absent.txt"),
        (["collect", "s.sqlite", "--cores", "0"], "--cores is 0"),
        (["train", "empty.sqlite", "--output", "w.pt"], "no workload with two measured candidates"),
        (["train", "absent.sqlite", "--output", "w.pt"], "absent.sqlite"),
        (["train", "empty.sqlite", "--output", "no/such/folder.pt"], "there is no directory"),
        (["train", "text.sqlite", "--output", "w.pt"], "text.sqlite"),
        (["evaluate", "empty.sqlite", "--weights", "absent.pt"], "there is no such file"),
        (["evaluate", "empty.sqlite", "--weights", "text.sqlite"], "no file of weights"),
    ],
)
def test_bad_input_is_named(
    command: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    records.open("empty.sqlite").close()
    Path("text.sqlite").write_text("not a store")
    assert main(command) == 1
    assert words in capsys.readouterr().err
    assert not Path("w.pt").exists()


def test_the_list_of_workloads_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--list", "--part", "2/100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 4
    assert all("=" in line for line in lines)


def test_seen_and_drawn_are_told_apart_by_sketch(space: Space) -> None:
    one = space.understood[0]
    candidate = Candidate(one, tuple(one.sample(1, 0)[0].tolist()), float("nan"), "random")
    found = at_random([one], Observations({candidate.key}), 12, np.random.default_rng(0))
    assert candidate.key not in {c.key for c in found}
