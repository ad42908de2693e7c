"""Strategies are compared on whole networks over time; every run is kept, and interrupted ones continue."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import operators as op

from felixlike import _tvm
from felixlike.bench import curves_page, libraries, over_time, over_time_run, scores
from felixlike.bench.searches import Trials, search
from felixlike.bench.sides import CHANNELS_LAST, EAGER, ONNX, TUNED
from felixlike.cli import main
from felixlike.errors import InvalidOption, MissingDependency
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.search import Random, Space, make_strategy

DEVICE = "simulated:cpu"
COMMAND = ("bench", "networks", "mlp", "--curves", "--target", DEVICE, "--space", "metaschedule")


@pytest.fixture
def task() -> Task:
    return make_task(op.matmul(32, 32, 32), resolve_target(DEVICE), name="matmul")


def _job(strategy: str = "random", **more: Any) -> over_time.Job:
    given = {"network": "mlp", "batch": 4, "space": "metaschedule", "seed": 0, "seconds": 6.0, "target": DEVICE}
    return over_time.Job(strategy=strategy, **{**given, **more})


def _row(
    strategy: str, curve: list[tuple[int, float, int, float]], seed: int = 0, network: str = "mlp", **more: Any
) -> dict[str, Any]:
    job = _job(strategy, seed=seed, seconds=100.0, network=network, target="cpu")
    tasks = [{"name": "matmul", "calls": 2.0, "flops": 1e6}, {"name": "softmax", "calls": 1.0, "flops": 1e3}]
    tasks.append({"name": "never", "calls": 3.0, "flops": 1e3})
    end = {"candidates": curve[-1][0] + 5, "elapsed": 99.0, "interrupted": 0}
    return {**over_time.fields(job), "tasks": tasks, "curve": [list(step) for step in curve], **end, **more}


SLOW = [(1, 2.0, 0, 4e-3), (20, 20.0, 1, 1e-3), (60, 60.0, 0, 1e-3)]
FAST = [(1, 2.0, 0, 4e-3), (5, 5.0, 1, 1e-3), (10, 10.0, 0, 1e-3)]


def test_seconds_of_a_simulated_search_are_those_of_the_device_and_of_the_search(task: Task) -> None:
    seen: list[int] = []
    trials = search(
        [task], Random(), space="default", seed=0, trials=24, observe=lambda trials: seen.append(len(trials))
    )
    assert seen == list(range(1, 25))
    device = np.cumsum(trials.build) + np.cumsum(trials.run)
    own = np.array(trials.elapsed) - device
    assert (np.diff(trials.elapsed) > 0).all()
    assert (own > -1e-6).all()
    assert own[-1] < 60
    series = trials.series([3.0])
    assert series.best == pytest.approx(3.0 * min(trials.latency))


def test_a_simulated_search_ends_after_its_seconds(task: Task) -> None:
    whole = search([task], Random(), space="default", seed=0, trials=24)
    limit = whole.elapsed[11] + 1e-3
    short = search([task], Random(), space="default", seed=0, seconds=limit)
    assert 0 < len(short) < 24
    assert short.elapsed[-1] <= limit
    assert short.latency == whole.latency[: len(short)]


def test_an_interrupted_search_continues(task: Task, tmp_path: Path) -> None:
    def interrupt(trials: Trials) -> None:
        if len(trials) == 5:
            raise KeyboardInterrupt

    done = Trials()
    store = tmp_path / "store.sqlite"
    with pytest.raises(KeyboardInterrupt):
        search([task], Random(), space="default", seed=0, trials=16, store=store, done=done, observe=interrupt)
    assert len(done) == 5
    resumed = search([task], Random(), space="default", seed=0, trials=16, store=store, done=done)
    assert len(resumed) == 16
    assert resumed.latency == search([task], Random(), space="default", seed=0, trials=16).latency
    assert (np.diff(resumed.elapsed) > 0).all()


def test_seconds_of_a_search_on_this_machine_are_those_of_the_clock(tmp_path: Path) -> None:
    task = make_task(op.matmul(32, 32, 32), resolve_target("cpu"), name="matmul")
    started = time.monotonic()
    trials = search([task], Random(), space="default", seed=0, trials=3, store=tmp_path / "store.sqlite")
    assert len(trials) == 3
    assert min(trials.latency) < 1e-2
    assert 0 < trials.elapsed[0] < trials.elapsed[-1] < time.monotonic() - started
    again = search([task], Random(), space="default", seed=0, trials=4, store=tmp_path / "store.sqlite", done=trials)
    assert len(again) == 4
    assert again.elapsed[3] > again.elapsed[2]  # the seconds of the first search count


def test_rows_of_candidates_survive_json() -> None:
    trials = Trials([0, 1], [2e-6, math.inf], [0.5, 1.25], [0.1, 10.0], [0.4, 0.0])
    assert Trials.of(json.loads(json.dumps(trials.row()))) == trials


def test_runs_are_written_one_by_one_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[tuple[str, int]] = []

    def row_of(job: over_time.Job, folder: Path, **_: Any) -> dict[str, Any]:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append((job.strategy, job.seed))
        return {**_row(job.strategy, FAST), **over_time.fields(job)}

    monkeypatch.setattr(over_time, "row_of", row_of)
    monkeypatch.setattr(scores, "score_rows", lambda job: [])
    file = tmp_path / "curves.json"
    arguments = [*COMMAND, "--strategies", "felix,random", "--seeds", "2", "--seconds", "100", "--output", str(file)]
    assert main([*arguments, "--quiet"]) == 130
    rows = json.loads(file.read_text())["machines"][0]["data"]["runs"]
    assert [(row["strategy"], row["seed"]) for row in rows] == done == [("felix", 0), ("random", 0), ("felix", 1)]
    assert "| mlp |" in file.with_suffix(".md").read_text()
    done.clear()
    assert main(arguments) == 0  # only the last run is missing
    assert done == [("random", 1)]
    assert "Seconds to shares of the best known" in capsys.readouterr().out
    assert list(tmp_path.glob("curves-*-metaschedule-1.svg"))
    before = file.read_bytes()
    assert main([*arguments, "--quiet"]) == 0
    assert file.read_bytes() == before


@pytest.fixture
def _tvms_loggers() -> Iterator[None]:
    """Leave MetaSchedule's logger as it was, for its next run in this process."""
    yield
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def _quick_import() -> Callable[[], None]:
    """Return a function, for any process, that imports TVM's tensor intrinsics in 2 instead of 20 s.

    They look up the module of every frame of the stack.
    """

    def run() -> None:
        import importlib
        import inspect

        inspect.getmodule, original = (lambda *_: None), inspect.getmodule
        try:
            importlib.import_module("tvm.s_tir.tensor_intrin")
        finally:
            inspect.getmodule = original

    return run


@pytest.mark.usefixtures("_tvms_loggers")
@pytest.mark.timeout(600)  # TVM's workers import TVM
def test_stock_metaschedule_measures_candidates(tmp_path: Path) -> None:
    task = make_task(op.matmul(32, 32, 32), resolve_target("cpu"), name="matmul")
    job = _job(over_time.STOCK, target="cpu", seconds=math.inf)
    done = Trials([0], [1.0], [5.0], [0.0], [0.0])  # of an interrupted run
    with (tmp_path / "candidates.jsonl").open("w") as lines:
        options = {"max_trials_global": 3, "num_trials_per_iter": 3, "cost_model": "random"}  # "xgb" needs a package
        builder = _tvm.ms.builder.LocalBuilder(max_workers=1, timeout_sec=300.0, initializer=_quick_import())
        _quick_import()()
        over_time_run._stock(job, [task], tmp_path, done, lines, builder=builder, **options)
    rows = list(over_time.candidates_of(tmp_path))
    assert [index for index, _, _ in rows] == [0] * 3
    assert 0 < min(latency for _, latency, _ in rows) < 1e-2
    elapsed = [at for _, _, at in rows]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] > 5.0
    assert elapsed[-1] < time.monotonic() - float((tmp_path / "started").read_text())
    assert (tmp_path / "tvm" / "database_tuning_record.json").read_text().count("\n") == 3


def test_a_run_of_stock_metaschedule_without_candidates_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_process(place: Path, *_: Any, **__: Any) -> None:
        (place / "tasks.json").write_text('[{"name": "matmul", "calls": 1.0, "flops": 1.0}]')
        (place / "starts").write_text("0\n")

    monkeypatch.setattr(over_time, "_run_process", run_process)
    job = _job(over_time.STOCK, target="cpu")
    with pytest.raises(over_time.RunFailed, match=r"stock: no candidate within 6 s.*more --seconds"):
        over_time.row_of(job, tmp_path)
    (tmp_path / job.name / "candidates.jsonl").write_text("[0, 1e-3, 0.5]\n")
    assert over_time.row_of(job, tmp_path)["candidates"] == 1


def test_a_network_is_searched_in_a_process_of_its_own(tmp_path: Path) -> None:
    job = _job(seconds=3.0)
    place = tmp_path / job.name
    place.mkdir()
    (place / "candidates.jsonl").write_text("[0, 1e-3, 0.5]\n[1, null, 0.75]\n[0, 1e")  # of an interrupted run
    (place / "starts").write_text("0\n")
    row = over_time.row_of(job, tmp_path, quiet=True)
    assert row["curve"][0] == [1, 0.5, 0, 1e-3]
    assert row["candidates"] > 2
    assert 0.75 < row["elapsed"] <= 3.0
    assert row["interrupted"] == 1
    assert [task["calls"] for task in row["tasks"]] == [1.0, 1.0, 1.0]
    seconds = [step[1] for step in row["curve"]]
    assert seconds == sorted(seconds)
    assert not place.exists()


def test_a_process_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(over_time.RunFailed, match=r"random: .*KeyError: 'nowhere'"):
        over_time.row_of(_job(network="nowhere"), tmp_path, quiet=True)

    def row_of(job: over_time.Job, folder: Path, **_: Any) -> dict[str, Any]:
        if job.strategy == "felix":
            raise over_time.RunFailed("felix: it is out of memory")
        return {**_row(job.strategy, FAST), **over_time.fields(job)}

    monkeypatch.setattr(over_time, "row_of", row_of)
    monkeypatch.setattr(scores, "score_rows", lambda job: [])
    file = tmp_path / "curves.json"
    assert main([*COMMAND, "--strategies", "felix,random", "--seeds", "1", "--output", str(file), "--quiet"]) == 1
    assert "mlp, batch 1: felix: it is out of memory" in capsys.readouterr().err
    assert len(json.loads(file.read_text())["machines"][0]["data"]["runs"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["networks", "alexnet", "--curves"], "network 'alexnet'"),
        (["networks", "", "--curves"], "network ''"),
        (["networks", "--curves", "--strategies", "feliks"], "strategy 'feliks'.*did you mean 'felix'"),
        (["networks", "--curves", "--strategies", "felix,"], "strategy ''"),
        (["networks", "--curves", "--space", "tvm"], "'tvm' is not a space.*own"),
        (["networks", "--curves", "--seeds", "0"], "seeds.* 0"),
        (["networks", "--curves", "--seconds", "0"], "seconds.* 0"),
        (["networks", "--curves", "--target", "sm_90"], "not on sm_90"),
        (["networks", "--curves", "--target", DEVICE, "--strategies", "stock"], "'stock' measures on a real device"),
        (["networks", "--curves", "--against", "eager"], "--against does not go with --curves"),
        (["networks", "--curves", "--output", "nowhere/curves.json"], "nowhere/curves.json: "),
        (["networks", "--seeds", "2"], "--seeds is for --curves"),
        (["model.py:factory", "--curves"], "--curves is for networks"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 1
    assert re.search(words, " ".join(capsys.readouterr().err.split()))


def test_stock_without_its_package_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingDependency, match=r"strategy stock: xgboost.*leave the strategy out"):
        over_time.require(["felix", over_time.STOCK])


def test_stock_is_left_out_on_simulated_devices_and_has_its_own_space() -> None:
    assert {job.strategy for job in over_time.jobs((), (1,), "own", (), 1, 9.0, DEVICE)} == {*over_time.STRATEGIES} - {
        over_time.STOCK
    }
    both = over_time.jobs(("mlp",), (1, 16), "own", ("felix", "stock"), 2, 9.0)
    assert [(job.batch, job.seed, job.strategy, job.space) for job in both] == [
        (batch, seed, *kind)
        for batch in (1, 16)
        for seed in (0, 1)
        for kind in (("felix", "own"), ("stock", "metaschedule"))
    ]
    with pytest.raises(InvalidOption, match="network 'alexnet'"):
        over_time.jobs(("alexnet",), (1,), "own", (), 1, 9.0)


def test_tables_hold_what_the_curves_say() -> None:
    rows = [_row("ansor", SLOW, seed) for seed in range(3)] + [_row("felix", FAST, seed) for seed in range(3)]
    never = _row("gradient", [(1, 1.0, 0, 5e-3), (2, 2.0, 1, 1e-3)])
    library = {"network": "mlp", "batch": 4, "name": "ONNX Runtime", "seconds": 4e-3}
    text = curves_page.text([*rows, never], [library], [], {})
    lines = [line.split(" | ") for line in text.splitlines()]
    assert ["| mlp, batch 4", "ONNX Runtime", "4", "10", "60", ">100 |"] in lines  # 2 × 1 + 1 ms
    assert ["| mlp, batch 4", "95%", "3", "10", "60", ">100 |"] in lines
    assert ["| ansor ÷ felix", "6.00 (6.00)", "6.00 (6.00)", "6.00 (6.00)", "2 |"] in lines
    ratios = next(line for line in lines if line[0] == "| felix ÷ gradient")
    assert ratios[1] == "0.05 (0.71)"  # 10 ÷ 200 s, 10 ÷ 14 candidates
    assert "No run found a schedule for these tasks of mlp, batch 4: never." in text
    assert ["| matmul", "1", "1.00", "1.00", "0.20 |"] in lines
    assert "15; 3 ms" in text


def test_networks_on_which_neither_arrives_have_no_ratio() -> None:
    best = [(1, 2.0, 0, 1e-3), (5, 5.0, 1, 1e-4)]
    page = curves_page.text([_row("ansor", SLOW), _row("felix", FAST), _row("gradient", best)], [], [], {})
    assert "| ansor ÷ felix | – | – | – | 2 |" in page.splitlines()
    assert "| felix ÷ gradient | 40.00 (6.00) | 40.00 (6.00) | 40.00 (6.00) | 1.5 |" in page.splitlines()


def test_networks_on_which_fewer_than_half_of_the_runs_arrive_have_no_ratio() -> None:
    """The median of the others would be that of twice their lengths."""
    best = [(1, 2.0, 0, 1e-3), (5, 5.0, 1, 1e-4)]
    rows = [_row("felix", SLOW, seed) for seed in range(3)] + [_row("gradient", FAST, seed) for seed in range(2)]
    page = curves_page.text([*rows, _row("gradient", best, 2)], [], [], {})
    assert "| felix ÷ gradient | – | – | – | 1.5 |" in page.splitlines()


def test_a_band_is_drawn_for_each_strategy(tmp_path: Path) -> None:
    rows = [_row("felix", FAST, seed) for seed in range(3)]
    rows += [{**row, "batch": 1} for row in rows] + [_row("random", SLOW)]
    names = curves_page.draw(rows, [], tmp_path / "curves.svg")
    assert names == {"metaschedule-more": "curves-metaschedule-more.svg", "metaschedule-1": "curves-metaschedule-1.svg"}
    assert (tmp_path / "curves-metaschedule-1.svg").read_text().count("<path") > 6
    text = curves_page.text(rows, [], [], names)
    assert text.index("Fig. 7)](curves-metaschedule-1.svg)") < text.index("Fig. 10)](curves-metaschedule-more.svg)")


def test_the_fastest_library_is_that_of_the_networks_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"network": "mlp", "batch": 4, EAGER: 4e-3, ONNX: 2e-3, TUNED: 1e-3}
    monkeypatch.setattr(libraries, "of_this_machine", lambda path: {"rows": [row]})
    assert libraries.best_library("mlp", 4, tmp_path / "networks.json") == [
        {"network": "mlp", "batch": 4, "name": ONNX, "seconds": 2e-3}
    ]
    row["wrong"] = {ONNX: "it is off"}
    assert libraries.best_library("mlp", 4, tmp_path / "networks.json")[0]["name"] == EAGER
    (timed,) = libraries.best_library("mlp", 1, tmp_path / "networks.json")  # not in the results
    assert timed["name"] in {f"{side}, timed here" for side in (EAGER, CHANNELS_LAST)}
    assert 0 < timed["seconds"] < 1


@pytest.mark.parametrize(("name", "most"), [("felix", 8 * 201), ("random", 16)])
def test_all_points_of_a_round_have_a_score(name: str, most: int, task: Task) -> None:
    looked_at, chosen = scores.first_round(Space(task, "default"), make_strategy(name), 0)
    assert (len(looked_at) > 64) == (name == "felix")  # rounded points of a trajectory that are equal count once
    assert 0 < len(chosen) <= len(looked_at) <= most
    assert chosen.max() <= looked_at.max() + 1e-9


def test_distributions_of_scores_are_relative_to_the_best_point() -> None:
    fields = {"network": "mlp", "batch": 4, "space": "metaschedule", "target": "cpu", "task": "matmul", "scored": 99}
    quantiles = np.linspace(-1.0, 0.0, scores.QUANTILES).tolist()
    rows = [
        {**fields, "strategy": "felix", "scores": [0.0] * scores.QUANTILES, "measured": 0.0},
        {**fields, "strategy": "random", "scores": quantiles, "measured": math.log(0.5)},
    ]
    only = {**fields, "strategy": "felix", "task": "copy", "scored": 1, "scores": [0.0], "measured": 0.0}
    lines = curves_page.text([_row("felix", FAST)], [], [*rows, only], {}).splitlines()  # nothing to choose in `only`
    assert "| felix | 99 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 100% | 100% | 1.00 |" in lines
    assert "| random | 99 | 0.47 | 0.61 | 0.78 | 0.95 | 1.00 | 69% | 11% | 0.50 |" in lines


def test_the_process_of_a_run_exits_like_an_interrupted_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "job.json").write_text(json.dumps(over_time.fields(_job())))
    monkeypatch.setattr("sys.argv", ["over_time_run", str(tmp_path)])
    monkeypatch.setattr(over_time_run, "search", interrupt)
    assert over_time_run.main() == 130
