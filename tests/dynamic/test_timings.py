"""Test that timings of kernels for dynamic sizes are kept in the store, limited, resumed, merged and exported."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support import dynamic_operators as operators
from torch import nn

import felixlike as fx
from felixlike import records
from felixlike.dynamic.bench import Bench, Point, Timings
from felixlike.dynamic.operator import read_operator
from felixlike.errors import FelixlikeWarning, InvalidOption
from felixlike.frontend import Task
from felixlike.hardware import resolve_target
from felixlike.measure import Measurement, Status
from felixlike.records.metaschedule import export_database
from felixlike.records.record import UKERNELS
from felixlike.report.page.logs import Logs
from felixlike.report.page.stores import StorePage
from felixlike.tuning.budget import Budget

T = fx.Dim("T", range(1, 9))
EVEN = 8


class Counting(Bench[int]):
    """A bench whose programs are numbers: odd ones fail, even ones take as many microseconds."""

    def __init__(self, timings: Timings) -> None:
        operator = read_operator(operators.dense(16, 32))
        assert operator is not None
        super().__init__(operator, resolve_target("cpu"), timings, name="dense")
        self.asked: list[tuple[tuple[int, ...], int]] = []

    @property
    def device(self) -> str:
        return "a fake"

    def point(self, program: int) -> Point:
        return (program,)

    def fits(self, sizes: tuple[int, ...]) -> bool:
        return sizes[0] < 100

    def measure(self, task: Task, sizes: tuple[int, ...], programs: Sequence[int]) -> list[Measurement]:
        self.asked += [(sizes, program) for program in programs]
        return [
            Measurement(Status.RUN_ERROR) if n % 2 else Measurement(Status.OK, n * 1e-6, (n * 1e-6,)) for n in programs
        ]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU()).eval()


def test_each_program_is_timed_once_at_a_size() -> None:
    bench = Counting(Timings())
    trials = [(2, (5,)), (3, (5,)), (2, (6,)), (2, (5,)), (2, (100,))]
    assert bench.seconds(trials).tolist() == [2e-6, float("inf"), 2e-6, 2e-6, float("inf")]
    assert bench.asked == [((5,), 2), ((5,), 3), ((6,), 2)]
    assert bench.used == 3
    bench.seconds(trials)
    assert len(bench.asked) == 3
    assert len({bench.task((5,)).key, bench.task((6,)).key}) == 2
    assert bench.task((5,)).name == "dense, T=5"
    assert tuple(bench.task((5,)).module["main"].params[0].shape) == (5, 16)


def test_stored_timings_are_not_repeated_but_count(tmp_path: Path) -> None:
    trials = [(2, (5,)), (3, (5,)), (4, (6,))]
    with records.open(tmp_path / "store.sqlite") as store:
        first = Counting(Timings(store, Budget(), seed=7))
        seconds = first.seconds(trials).tolist()
        kept = list(store.measurements())
    assert [(record.sketch, record.point, record.seed) for record in kept] == [(UKERNELS, (n,), 7) for n in (2, 3, 4)]
    with records.open(tmp_path / "store.sqlite") as store:
        budget = Budget(trials=4)
        second = Counting(Timings(store, budget))
        assert second.seconds([*trials, (8, (6,)), (10, (6,))]).tolist() == [*seconds, 8e-6, float("inf")]
    assert second.asked == [((6,), 8)]
    assert (budget.found_trials, budget.new_trials, second.timings.left_out) == (3, 1, 1)


@pytest.mark.parametrize("budget", [Budget(trials=0), Budget(seconds=0)])
def test_nothing_is_timed_beyond_the_limits(budget: Budget) -> None:
    bench = Counting(Timings(budget=budget))
    assert bench.seconds([(2, (5,))]).tolist() == [float("inf")]
    assert (bench.asked, bench.used, bench.timings.left_out) == ([], 0, 1)


_KILLED = """
import os, signal, sys
import felixlike as fx
from felixlike.dynamic.bench import Timings
sys.path.insert(0, sys.argv[2])
import test_timings

take, groups = Timings.take, []

def dying(self, *arguments):
    if len(groups) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    groups.append(take(self, *arguments))
    return groups[-1]

Timings.take = dying
fx.optimize(test_timings.model(), ((test_timings.T, 16),), store=sys.argv[1], progress=False)
"""


def test_a_killed_run_resumes_and_its_timings_merge_and_are_not_exported(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    command = [sys.executable, "-c", _KILLED, str(path), str(Path(__file__).parent)]
    ended = subprocess.run(command, check=False, timeout=300, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with records.open(path) as store:
        kept = store.count(UKERNELS)
    assert kept > 0
    resumed = fx.optimize(model(), ((T, 16),), store=path, progress=False)
    assert resumed.report.recalled == kept
    assert resumed.report.trials > 0
    again = fx.optimize(model(), ((T, 16),), store=path, progress=False)
    assert again.report.trials == 0
    assert again.report.recalled == kept + resumed.report.trials
    killed, second, third = Logs(path).update()
    assert (killed.report, killed.trials) == (None, kept)
    assert second.report is not None
    assert (second.trials, second.report.recalled) == (resumed.report.trials, kept)
    assert third.trials == 0
    page = StorePage(path).build()
    assert dict(page.facts)["Kernels for dynamic sizes"] == f"{again.report.recalled} measurements"
    assert page.state == ""
    x = torch.randn(7, 16)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model()(x), rtol=1e-5, atol=1e-5)
    with records.open(path) as store, records.open() as merged:
        assert store.summary() == ()
        records.merge(merged, path)
        assert merged.count(UKERNELS) == store.count() == again.report.recalled
        exported = export_database(store, tmp_path / "database")
    assert exported.records == 0
    assert sum(exported.passed_over.values()) > 0


def test_limits_and_options_of_dynamic_models() -> None:
    limited = fx.optimize(model(), ((T, 16),), trials=EVEN, progress=False)
    assert limited.report.trials == EVEN
    assert "left out" in limited.report.stopped
    rounds = fx.optimize(model(), ((T, 16),), rounds=1, progress=False)
    assert rounds.report.trials == 8
    with pytest.warns(FelixlikeWarning, match=r"strategy, space has no effect"):
        fx.optimize(model(), ((T, 16),), trials=0, strategy="random", space="all", progress=False)
    for tracker, where in ((None, "key"), ("localhost:1", "tracker")):
        with pytest.raises(InvalidOption) as raised:
            fx.optimize(model(), ((T, 16),), trials=0, progress=False, tracker=tracker, key="cpu")
        assert raised.value.where == where
