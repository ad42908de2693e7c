"""Reports: text, JSON and back, progress."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads
from rich.console import Console

from felixlike.errors import InvalidArtefact, InvalidOption
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.report import Report, TaskReport, make_progress, report_text
from felixlike.report.progress import LineReporter, Reporter
from felixlike.report.tables import latency
from felixlike.tuning import Budget, Event, TaskState


@pytest.fixture
def report() -> Report:
    common: dict[str, Any] = {
        "workload": "k",
        "weight": 2.0,
        "flops": 4e6,
        "sketches": 3,
        "failures": {},
        "sampled": {},
    }
    measured = TaskReport(
        name="dense", how="measured", sketch=1, seconds=2e-4, trials=32, error=3e-7, point={"i.0": 4}, **common
    )
    unmeasured = TaskReport(
        name="norm", how="unmeasured", sketch=0, seconds=math.nan, trials=0, error=1e-7, point={}, **common
    )
    pool = dataclasses.replace(
        unmeasured,
        name="pool",
        how="untuned",
        sketch=None,
        error=None,
        sampled={"2": "the window is fused."},
        note="slow",
    )
    return Report(
        model="Net",
        tasks=(measured, unmeasured, pool),
        trials=32,
        rounds=2,
        seconds=12.0,
        total_seconds=15.0,
        error=4e-7,
        reference="float64 eager",
        stopped="the rounds were used up",
        device="a CPU",
        target="llvm",
        versions={"felixlike": "0"},
        seed=3,
    )


def test_text(report: Report, golden: Callable[[str, str], None]) -> None:
    golden("report", report_text(report))
    assert str(report) == report_text(report)


def test_json_and_back(report: Report) -> None:
    again = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert report_text(again) == report_text(report)
    assert math.isnan(again.tasks[1].seconds)
    with pytest.raises(InvalidArtefact, match="its report is damaged"):
        Report.from_json({"tasks": [{}]})


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (3.14159e-3, "3.14 ms"), (2e-6, "2 µs"), (5e-9, "5 ns"), (math.nan, "–")]
)
def test_latencies_are_readable(seconds: float, text: str) -> None:
    assert latency(seconds) == text


def test_plain_lines_name_task_best_trials_and_time_left() -> None:
    task = make_task(workloads.matmul(), resolve_target("cpu"), name="dense")
    out = io.StringIO()
    reporter = LineReporter(Console(file=out, width=200))
    reporter.event(Event(TaskState(task, np.random.default_rng(0)), 0, Budget(rounds=3, trials=40)))
    assert out.getvalue().startswith("dense: best none yet, 0 of 40 trials, round 1 of 3, ")


def test_progress_can_be_silent_plain_or_refused() -> None:
    assert type(make_progress(False)) is Reporter
    assert isinstance(make_progress("plain"), LineReporter)
    with pytest.raises(InvalidOption, match="progress is 'loud'"):
        make_progress("loud")
