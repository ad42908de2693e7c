"""AdaTune's figures are made of saved runs, and their tables hold what the runs say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import adatune, adatune_page
from benchmarks.adatune import Job, measured, strategy_of
from benchmarks.adatune_page import (
    ADATUNE,
    BASELINE,
    EPSILONS,
    VARIANTS,
    Run,
    comparable,
    draw,
    speedups,
    text,
    workloads,
)
from felixlike.bench.searches import Trials
from felixlike.measure import EVALUATORS
from felixlike.search.strategies.adatune import AdaTune

OPERATOR = "batch matmul, CPU"


def _run(variant: str, seed: int = 0, *, seconds: float = 10.0, best: float = 1e-5, network: bool = False) -> Run:
    """Return a run of four candidates whose last one is the best."""
    trials = Trials()
    for place in range(4):
        latency = math.inf if place == 1 else best * (4 - place)
        trials.add(0, latency, seconds * (place + 1), seconds / 4, seconds / 2)
    name = "resnet18" if network else OPERATOR
    return Run(name, variant, seed, trials, ("matmul",), (1.0,), 2e6, network)


def test_runs_survive_json() -> None:
    run = _run(ADATUNE)
    assert Run.of(json.loads(json.dumps(run.row()))) == run
    assert run.brief()["curve"] == [(1, 10.0, 4e-5), (3, 30.0, 2e-5), (4, 40.0, 1e-5)]
    assert run.search_seconds == pytest.approx(10.0)


def test_speedups_are_seconds_to_the_baselines_best() -> None:
    runs = [_run(BASELINE, seed) for seed in range(3)]
    runs += [_run(ADATUNE, 0, seconds=5.0), _run(ADATUNE, 1, best=5e-6), _run(ADATUNE, 2, best=2e-5)]
    by_variant = workloads(runs)[OPERATOR]
    assert speedups(by_variant, ADATUNE) == [pytest.approx(2.0), pytest.approx(40 / 30), 0.0]
    assert speedups(by_variant, ADATUNE, 0.5) == [pytest.approx(2.0), pytest.approx(3.0), pytest.approx(30 / 40)]
    assert speedups(by_variant, "rfei+sa+de") == []


def test_tables_and_figures_show_every_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adatune_page, "FOLDER", tmp_path)
    runs = [_run(variant, seed) for seed in range(15) for variant in (*VARIANTS, *EPSILONS)]
    runs += [_run(variant, seed, network=True) for seed in range(2) for variant in (BASELINE, ADATUNE)]
    batches = [adatune_page._variation("zen5", [[1.0, 1.1] * 16, [2.0] * 32])]
    names = draw(runs, batches)
    assert names == [f"adatune-{figure}.svg" for figure in ("4", "6", "10", "11", "2-9", "7", "8", "3")]
    assert all((tmp_path / name).read_text().count("<path") > 3 for name in names)
    page = text(runs, batches, names)
    lines = page.splitlines()
    assert f"| {OPERATOR} | 15 |" + " 1.00 |" * 7 in lines
    assert f"| resnet18 | {BASELINE} | 4 | 10 | 10 | 20 | 50% | 0.01 |" in lines
    assert "![adatune-3.svg](adatune-3.svg)" in lines
    networks = [run for run in runs if run.is_network]
    assert draw(networks, [], "adatune_networks") == [f"adatune_networks-{figure}.svg" for figure in ("2-9", "7", "8")]


def test_tasks_without_a_schedule_in_any_run_do_not_count() -> None:
    runs = [_two_tasks(BASELINE, (1e-5, math.inf, math.inf)), _two_tasks(ADATUNE, (2e-5, math.inf, math.inf))]
    assert math.isinf(runs[0].series.best)
    counted = comparable(runs)
    assert [run.weights for run in counted] == [(1.0, 0.0)] * 2
    assert [run.series.best for run in counted] == [1e-5, 2e-5]
    assert "No run found a schedule for these tasks of resnet18: copy." in text(counted, [], [])
    one_failed = comparable([runs[0], _two_tasks(ADATUNE, (2e-5, math.inf, 1e-6))])
    assert [run.series.best for run in one_failed] == [math.inf, pytest.approx(2.3e-5)]  # the task can be scheduled


def _two_tasks(variant: str, latencies: tuple[float, ...]) -> Run:
    """Return the run of a network of two tasks, of which only the first candidate is the first one's."""
    trials = Trials()
    for place, latency in enumerate(latencies):
        trials.add(min(place, 1), latency, place + 1.0, 0.25, 0.5)
    return Run("resnet18", variant, 0, trials, ("matmul", "copy"), (1.0, 3.0), 2e6, True)


def test_candidates_for_less_than_a_round_of_each_task_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["adatune", "--networks", "resnet18", "--network-candidates", "48"])
    with pytest.raises(SystemExit):
        adatune.main()
    assert "--network-candidates: fewer than a round of 64" in capsys.readouterr().err


def test_the_adaptive_evaluator_takes_few_of_the_recorded_batches() -> None:
    steady, noisy = [1.0] * 10, [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert adatune_page._taken(steady) == EVALUATORS["adaptive"].min_batches == 2
    assert adatune_page._taken(noisy) == 10  # the cumulative performance varies by more than a tenth to the end
    row = adatune_page._variation("zen5", [steady, steady, noisy])
    assert row["taken"] == pytest.approx(14 / 3)
    assert row["error"] == 0.0
    assert row["variation"]["1"] == 0.0
    short = adatune_page._variation("h100", [[1.0, 1.2, 1.1]])
    assert "taken" not in short
    assert list(short["variation"]) == ["1"]
    assert "| h100 | 1 | 9.09% | – |" in text([], [short], [])


def test_finished_runs_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Job] = []

    def run(job: Job) -> Run:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(job)
        return _run(job.variant, job.seed)

    monkeypatch.setattr(adatune, "_run", run)
    jobs = [Job(OPERATOR, variant, 0, 64, 24) for variant in VARIANTS]
    with pytest.raises(KeyboardInterrupt):
        measured(jobs, tmp_path)
    assert done == jobs[:2]
    assert [one.variant for one in measured(jobs, tmp_path, minutes=0.0)] == list(VARIANTS[:2])
    done.clear()
    assert len(measured(jobs[:3], tmp_path)) == 3
    assert done == jobs[2:3]
    assert measured([Job(OPERATOR, BASELINE, 0, 64, 500)], tmp_path, minutes=0.0) == []  # other steps, another run


@pytest.mark.parametrize("variant", [*VARIANTS, *EPSILONS])
def test_variants_differ_in_what_their_names_say(variant: str) -> None:
    if "xgb" in variant or variant in EPSILONS:
        pytest.importorskip("xgboost")
    strategy: Any = strategy_of(variant, 24)
    assert isinstance(strategy, AdaTune)
    assert strategy.steps == 24
    assert strategy.epsilon == EPSILONS.get(variant, None if "csa" in variant else 0.05)
    assert strategy.surrogate == ("forest" if "rfei" in variant else "xgboost")
    assert strategy.timing == EVALUATORS["adaptive" if variant == ADATUNE else "deterministic"]


def test_a_run_on_a_simulated_device_measures_its_candidates() -> None:
    run = adatune._run(Job(OPERATOR, ADATUNE, 0, 12, 1))
    assert len(run.trials) == 12
    assert run.flops == 2.0 * 12 * 128 * 64 * 128
    assert run.series.seconds > sum(run.trials.build) + sum(run.trials.run) > 0
    assert 1e-6 < run.series.best < 1e-1
