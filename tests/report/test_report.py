"""Reports as text and JSON, and progress output."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads

from felixlike.errors import InvalidArtefact, InvalidOption
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.records import WorkloadSummary
from felixlike.report import Report, TaskReport, make_progress, report_text, store_text
from felixlike.report.page import page_of_report, page_text, report_table
from felixlike.report.progress import LineReporter, LiveReporter, Reporter
from felixlike.report.tables import call_notes, latency
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


@pytest.mark.parametrize("width", [None, 40, 60, 80, 120, 200])
def test_text_at_every_width(
    report: Report, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    text = report_text(report, width=width)
    golden("report" if width is None else f"report_{width}", text)
    assert width is None or max(map(len, text.splitlines())) <= width
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    assert str(report) == text


@pytest.fixture
def named(report: Report) -> Report:
    """A report with the layers of two tasks, and latencies of whole calls."""
    dense, norm, pool = report.tasks
    tasks = (
        dataclasses.replace(dense, layers=("block.0.dense + relu", "block.1.dense + relu"), predicted=2.5e-4),
        dataclasses.replace(norm, layers=("block.0.norm", "block.1.norm", "block.2.norm"), note="old"),
        pool,
    )
    calls: dict[str, Any] = {"latency": 5e-4, "latency_low": 4.9e-4, "latency_high": 5.2e-4}
    eager: dict[str, Any] = {"eager": 9e-4, "eager_low": 8e-4, "eager_high": 1e-3}
    return dataclasses.replace(report, tasks=tasks, **calls, **eager)


@pytest.mark.parametrize("width", [None, 80])
def test_text_with_layers(named: Report, golden: Callable[[str, str], None], width: int | None) -> None:
    text = report_text(named, width=width)
    golden("report_layers" if width is None else f"report_layers_{width}", text)
    restored = Report.from_json(json.loads(json.dumps(named.to_json())))
    assert report_text(restored, width=width) == text


def test_pages_list_the_layers_and_the_latency_of_a_call(named: Report) -> None:
    page = page_text(page_of_report(named))
    assert "block.0.dense + relu (and 1 other)" in page
    assert "block.0.norm, block.1.norm, block.2.norm" in page
    assert "1.8x the speed of eager PyTorch" in page
    assert "1.8x the speed of eager PyTorch" in report_table(named)
    assert named.speedup == pytest.approx(1.8)


def test_reports_of_earlier_versions_have_no_layers(named: Report) -> None:
    data = named.to_json()
    for name in ("latency", "latency_low", "latency_high", "eager", "eager_low", "eager_high"):
        del data[name]
    for task in data["tasks"]:
        del task["layers"], task["predicted"]
    old = Report.from_json(data)
    assert [task.title for task in old.tasks] == [task.name for task in old.tasks]
    assert call_notes(old) == []


@pytest.mark.parametrize(
    ("predicted", "tuned", "words"),
    [
        (2.5e-4, 2e-4, "Tuning made the model 1.25x faster than the predicted schedules (sum of kernels: 400 µs"),
        (2e-4, 2e-4, "Tuning found nothing faster than the predicted schedules."),
    ],
)
def test_the_gain_over_the_predicted_schedules(report: Report, predicted: float, tuned: float, words: str) -> None:
    task = dataclasses.replace(report.tasks[0], seconds=tuned, predicted=predicted)
    (line,) = call_notes(dataclasses.replace(report, tasks=(task,)))
    assert line.startswith(words)


def test_text_uses_characters_of_the_output_encoding(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    print(report)
    assert str(report).isascii()
    assert "200 us" in str(report)


@pytest.mark.parametrize("width", [None, 40, 60, 80])
def test_text_of_stores(golden: Callable[[str, str], None], width: int | None) -> None:
    first = WorkloadSummary("a", "fused_conv2d_add_relu", 1e6, "llvm", "AMD EPYC 9R14 96-Core Processor", 16, 15, 8e-6)
    second = dataclasses.replace(first, device="Intel Xeon", best=None, right=0)
    name = "" if width is None else f"_{width}"
    golden(f"store{name}", store_text("runs.sqlite", [first, first, second], width=width))
    golden(f"store_of_one_device{name}", store_text("runs.sqlite", [first], width=width))
    assert store_text("runs.sqlite", [], width=width) == "runs.sqlite\n0 measurements of 0 workloads."


def test_counts_of_one_are_singular(report: Report) -> None:
    single = dataclasses.replace(report, trials=1, rounds=1, recalled=1)
    assert "1 candidate in 1 round and 12 s of tuning (15 s in all), after 1 candidate from the store" in str(single)


def test_tables_count_candidates_of_all_runs(report: Report) -> None:
    task = dataclasses.replace(report.tasks[0], trials=2, failures={"wrong": 1}, recalled=300, recalled_failures=40)
    with_recalled = dataclasses.replace(report, tasks=(task,))
    (line,) = [line for line in report_text(with_recalled, width=120).splitlines() if task.name in line]
    assert "302" in line.split()
    page = report_table(with_recalled)
    assert "302" in page
    assert "41 (40 in earlier runs, 1 wrong)" in page


def test_names_are_not_interpreted_as_markup(report: Report) -> None:
    odd = dataclasses.replace(report, model="[/b]", device="[red]", stopped="[/]")
    assert report_text(odd).splitlines()[0].startswith("[/b] on [red]")
    assert "; [/]." in report_text(odd)


def test_reports_round_trip_through_json(report: Report) -> None:
    restored = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert report_text(restored) == report_text(report)
    assert math.isnan(restored.tasks[1].seconds)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.pop("tasks"), "tasks .* list"),
        (lambda r: r.update(tasks={}), "tasks .* list"),
        (lambda r: r.update(tasks=[{}]), r"tasks\[0\].name is missing"),
        (lambda r: r.update(tasks=[3]), r"tasks\[0\] is 3"),
        (lambda r: r["tasks"][0].update(seconds="1"), r"tasks\[0\].seconds is '1', expected float"),
        (lambda r: r["tasks"][0].update(point={"a": "b"}), r"tasks\[0\].point is .*\bdict\[str, int\]"),
        (lambda r: r["tasks"][0].update(failures=[1]), r"tasks\[0\].failures is \[1\]"),
        (lambda r: r["tasks"][0].update(layers="fc"), r"tasks\[0\].layers is 'fc', expected a list of strings"),
        (lambda r: r["tasks"][0].update(layers=[1]), r"tasks\[0\].layers is \[1\], expected a list of strings"),
        (lambda r: r.update(latency="1"), r"latency is '1', expected float"),
        (lambda r: r["tasks"][0].update(sketch=True), r"tasks\[0\].sketch is True"),
        (lambda r: r["tasks"][0].update(seconds=0.0), r"tasks\[0\].seconds is 0.0"),
        (lambda r: r["tasks"][0].update(weight=10**400), r"tasks\[0\].weight is 10+"),
        (lambda r: r["tasks"][0].update(flops=10**400), r"tasks\[0\].flops is 10+"),
        (lambda r: r.update(model=None), r"model is None.*\bstr\b"),
        (lambda r: r.update(trials=1.5), r"trials is 1.5.*\bint\b"),
        (lambda r: r.update(error=[]), r"error is \[\].*\bfloat\b"),
        (lambda r: r.update(versions={"felixlike": 1}), "versions is"),
        (lambda r: r.pop("device"), "device is missing"),
        (lambda r: r.update(colour="red"), "colour "),
    ],
)
def test_edited_reports_are_errors(report: Report, change: Callable[[dict[str, Any]], Any], words: str) -> None:
    data = json.loads(json.dumps(report.to_json()))
    change(data)
    with pytest.raises(InvalidArtefact, match=f"^report: .*: {words}"):
        Report.from_json(data)


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (3.14159e-3, "3.14 ms"), (2e-6, "2 µs"), (5e-9, "5 ns"), (math.nan, "–")]
)
def test_latencies_are_readable(seconds: float, text: str) -> None:
    assert latency(seconds) == text


@pytest.fixture
def event() -> Event:
    task = make_task(workloads.matmul(), resolve_target("cpu"), name="dense")
    return Event(TaskState(task, np.random.default_rng(0)), 0, Budget(rounds=3, trials=40))


def test_plain_lines_name_task_best_trials_and_time_left(event: Event) -> None:
    out = io.StringIO()
    LineReporter(out).event(event)
    assert out.getvalue() == "dense: best none yet, 0 of 40 trials, round 1 of 3, 0 s\n"


def test_the_live_line_is_overwritten_and_cleared(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with LiveReporter(out) as reporter:
        reporter.say("importing the model")
        reporter.event(event)
        reporter.event(event)  # too early for another update
    clear = "\r\x1b[2K"
    line = "dense: best none yet, 0 of 40 trials, round 1 of 3, 0 s"
    assert out.getvalue() == f"importing the model\n{clear}{line}{clear}"
    monkeypatch.setenv("COLUMNS", "40")
    with LiveReporter(narrow := io.StringIO()) as reporter:
        reporter.event(event)
    # The line is cut, because a line that wraps could not be cleared.
    assert narrow.getvalue() == f"{clear}dense: best none yet, 0 of 40 trials{clear}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "kind"),
    [
        (Terminal(), "xterm-256color", LiveReporter),
        (Terminal(), "dumb", LineReporter),
        (Terminal(), "", LineReporter),
        (io.StringIO(), "xterm-256color", LineReporter),  # a log, a pipe, a notebook
        (None, "xterm-256color", Reporter),
    ],
)
def test_only_terminals_get_escape_codes(
    stream: io.StringIO | None, term: str, kind: type[Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert type(make_progress(True)) is kind
    assert type(make_progress("plain")) is (Reporter if stream is None else LineReporter)


def test_progress_that_cannot_be_written_is_ignored(event: Event) -> None:
    with open("/dev/full", "w") as full:
        reporter = LineReporter(full)
        reporter.say("importing the model")
        with contextlib.suppress(OSError):
            full.close()
    reporter.event(event)  # it is closed
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    LineReporter(ascii_only).say("5 µs")
    assert ascii_only.buffer.getvalue() == b"5 us\n"


@pytest.mark.parametrize("wanted", ["loud", "", None, 1, 0, 3, print, np.array([1])])
def test_progress_is_silent_plain_or_an_error(wanted: Any) -> None:
    assert type(make_progress(False)) is Reporter
    assert type(make_progress("plain")) is LineReporter
    with pytest.raises(InvalidOption, match=r'^progress: .*True, False or "plain"'):
        make_progress(wanted)


def test_the_precision_of_products_is_reported(report: Report) -> None:
    """The report names the precision only for tasks whose schedules use it."""
    assert "Products" not in report_text(report)
    with_precision = dataclasses.replace(report, precision="tf32")
    assert "Products: tf32 was requested, but all are float32." in report_text(with_precision)
    first, *others = with_precision.tasks
    with_task_precision = dataclasses.replace(
        with_precision, tasks=(dataclasses.replace(first, precision="tf32"), *others)
    )
    assert "Products: tf32 on tensor cores in dense; float32 elsewhere." in report_text(with_task_precision)
    assert "tf32 on tensor cores in dense" in report_table(with_task_precision)
    assert Report.from_json(json.loads(json.dumps(with_task_precision.to_json()))).tasks[0].precision == "tf32"
    on_a_cpu = dataclasses.replace(with_task_precision, precision="bfloat16", target='{"kind":"llvm"}')
    assert "Products: bfloat16 weights in dense; float32 elsewhere." in report_text(on_a_cpu)
    pairs = dataclasses.replace(first, name="product", precision="bfloat16", rounded="factors")
    both = dataclasses.replace(on_a_cpu, tasks=(pairs, *on_a_cpu.tasks))
    assert "bfloat16 factors in product; bfloat16 weights in dense; float32 elsewhere." in report_text(both)
    assert Report.from_json(json.loads(json.dumps(both.to_json()))).tasks[0].rounded == "factors"
    older = with_task_precision.to_json()
    del older["precision"]
    for task in older["tasks"]:
        del task["precision"]
    assert Report.from_json(older).precision == "float32"
