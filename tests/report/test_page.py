"""HTML pages of reports and stores: contents, valid markup and escaped names."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from pages import Read
from support.stores import OTHER, TASK, record, timed

from felixlike import records
from felixlike.errors import InvalidArtefact, InvalidOption, OutputNotWritable
from felixlike.frontend.task import Task
from felixlike.measure.measurement import Measurement, Status
from felixlike.records import Record
from felixlike.report import Report, TaskReport
from felixlike.report.activity import Activity
from felixlike.report.curves import Step
from felixlike.report.page import Page, StorePage, page_body, page_of_report, page_text, write_page
from felixlike.report.page.charts import bars, curve, in_order, scatter
from felixlike.report.page.markup import element, escaped
from felixlike.report.task_history import MOST_PAIRS, Pair, TaskHistory, task_history_of, thinned
from felixlike.symbolic import sketches
from felixlike.symbolic.program.tree import LoopNode, Statement
from felixlike.tuning import History

EVIL = "<script>alert('x')</script>\"&\x00\ud800"

HISTORY = TaskHistory(
    steps=(Step(0, 0.0, 4e-4), Step(3, 2.5, 2e-4)),
    pairs=(Pair(1.0, 2e-4), Pair(0.5, 3e-4), Pair(2.0, 4e-4)),
    chosen=(LoopNode("i_fused", "parallel", 8, 64, (LoopNode("j", "vector", 16, 0, (Statement("C ⊕= f(A, B)"),)),)),),
    untuned=(LoopNode("i", "serial", 128, 0, (Statement("C ⊕= f(A, B)"),)),),
    building=1.5,
    running=0.5,
)


def report(name: str = "dense", story: TaskHistory = HISTORY) -> Report:
    task = TaskReport(
        name=name,
        workload="k",
        weight=2.0,
        flops=4e6,
        how="measured",
        sketch=1,
        sketches=3,
        seconds=2e-4,
        trials=32,
        failures={"wrong": 2, "build_error": 1},
        error=3e-7,
        point={"i.0": 4},
        sampled={},
        story=story,
    )
    other = dataclasses.replace(task, name="norm", how="unmeasured", seconds=math.nan, failures={}, story=TaskHistory())
    return Report(
        model=name,
        tasks=(task, other),
        trials=32,
        rounds=2,
        seconds=12.0,
        total_seconds=15.0,
        error=4e-7,
        reference="float64",
        stopped="the rounds were used up",
        device="a CPU",
        target="llvm",
        versions={"felixlike": "0"},
        seed=3,
        spent={"importing": 2.0, "measuring": 9.0},
    )


def test_the_page_of_a_report_has_all_its_values() -> None:
    page = Read(page_text(page_of_report(report())))
    assert not page.wrong
    assert not page.elsewhere()
    for words in (
        *("dense", "a CPU", "llvm", "felixlike 0", "32 candidates in 2 rounds, the rounds were used up"),
        *("4.0e-07, relative, of the whole model against float64", "12.0 of tuning, 15.0 in all", "200 µs", "1 of 3"),
        *("3 (1 build error, 2 wrong)", "100.0%", "3.0e-07", "20.0", "2.0 s, 13%", "9.0 s, 60%", "4.0 s, 27%"),
        *("building", "1.5 s, 75%", "Predicted and checked, not measured, for lack of budget: norm."),
        "predicted in 33%",
        "The chosen schedule: i.0 = 4",
    ):
        assert words in page.text, words
    assert "width=device-width" in str(page.tags)
    assert page.count("svg") == 3
    assert page.count("circle", "pair") == 3
    assert [page.count("div", kind) for kind in ("parallel", "vector", "serial")] == [1, 1, 1]
    for words in ("i_fused", "× 8", "parallel", "unroll ≤ 64", "C ⊕= f(A, B)", "Untuned"):
        assert words in page.text, words


def test_the_page_draws_what_seconds_were_spent_on() -> None:
    activity = Activity(0.5, 2, {"this process": (0.5, 0.25), "timing candidates": (0.0, 0.25)})
    data = report()
    tasks = (dataclasses.replace(data.tasks[0], spent={"proposing": 3.0, "building": 1.0}), *data.tasks[1:])
    page = Read(page_text(page_of_report(dataclasses.replace(data, tasks=tasks, activity=activity))))
    assert not page.wrong
    assert page.count("rect", "of-searching") == 1 + 2  # the task, and this process in two intervals
    assert page.count("rect", "of-timing") == page.count("rect", "of-idle") == 1
    for words in ("searching: 3.00 s", "building: 1.00 s", "4.0 s", "2 cores", "idle 38%", "idle cores"):
        assert words in page.text, words
    assert activity.idle == pytest.approx(1 - (0.5 + 0.25 + 2 * 0.25) / 2)


def test_reports_of_earlier_versions_have_a_page() -> None:
    data = report().to_json()
    del data["tasks"][0]["story"], data["tasks"][0]["spent"], data["spent"], data["activity"]
    page = Read(page_text(page_of_report(Report.from_json(data))))
    assert not page.wrong
    assert "The report has no curves" in page.text
    assert "The report does not contain its loops" in page.text
    assert "12.0 s, 80%" in page.text


@pytest.mark.parametrize("place", ["report", "store"])
def test_names_are_escaped(place: str, tmp_path: Path) -> None:
    if place == "report":
        evil_report = dataclasses.replace(report(EVIL), device=EVIL, note=EVIL, versions={EVIL: EVIL}, stopped=EVIL)
        story = dataclasses.replace(HISTORY, chosen=(LoopNode(EVIL, EVIL, 2, 0, (Statement(EVIL),)),))
        evil_report = dataclasses.replace(
            evil_report, tasks=(dataclasses.replace(evil_report.tasks[0], story=story, point={EVIL: 1}),)
        )
        text = page_text(page_of_report(evil_report)) + evil_report._repr_html_()
    else:
        plain = EVIL[:-1]  # SQLite cannot store a lone surrogate
        store = filled(tmp_path / "s.sqlite", dataclasses.replace(TASK, name=plain), device=plain)
        log(store, start={"model": EVIL, "target": EVIL, "seed": EVIL, "budget": {EVIL: EVIL}}, error={"message": EVIL})
        text = page_text(StorePage(store, name=EVIL).build())
    page = Read(text)
    assert not page.wrong
    assert not page.count("script")
    assert text.count("<script") == 0
    assert text.encode()
    assert page.text.count("<script>alert('x')</script>\"&�") >= 5


def test_element_escapes_text_and_attributes() -> None:
    assert element("p", "a<b", element("b", 'x"'), class_='"', data_x=None, open=True) == (
        '<p class="&quot;" open>a&lt;b<b>x&quot;</b></p>'
    )
    assert escaped("\x1b[31m") == "�[31m"


def filled(path: Path, *tasks: Task, device: str = "a CPU") -> Path:
    """Write a store with a failure and two latencies of each task, one second apart."""
    with records.open(path) as store:
        for number, task in enumerate(tasks):
            for step, measurement in enumerate(
                (Measurement(Status.CRASHED, build_seconds=0.5), timed(4e-4), timed(2e-4))
            ):
                stored = dataclasses.replace(
                    record(measurement, task, (step,)), device=device, time=100.0 + 3 * number + step
                )
                store.append(task, stored)
    return path


def log(store: Path, name: str = "20260101T000000-1.jsonl", **events: dict[str, Any]) -> Path:
    """Append these events and damaged lines to the log of a run."""
    path = Path(f"{store}.logs") / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        for number, (event, values) in enumerate(events.items()):
            line = {"seconds": 2.0 + number, "time": "2026-01-01T00:00:00Z", "event": event.rstrip("0123456789")}
            file.write(json.dumps(line | values) + "\n{damaged\n[1]\n")
    return path


def test_the_page_of_a_store_has_all_devices_and_tasks(tmp_path: Path) -> None:
    store = filled(tmp_path / "s.sqlite", TASK, OTHER)
    filled(store, TASK, device="another CPU")
    page = StorePage(store).build()
    assert [(group.device, [task.name for task in group.tasks]) for group in page.groups] == [
        ("a CPU", ["relu16", "relu32"]),
        ("another CPU", ["relu16"]),
    ]
    first, second = page.groups[0].tasks
    assert (first.best, first.trials, dict(first.failures)) == (2e-4, 3, {"crashed": 1})
    assert first.steps == ((1.5, 4e-4), (2.5, 2e-4))  # the time of the first one includes its build
    assert second.steps == ((4.5, 4e-4), (5.5, 2e-4))
    assert first.until == second.until == 5.5
    assert "its trace" in first.unseen  # the sketches are made up
    text = Read(page_text(page)).text
    for words in (
        "9, 6 of them valid, of 2 workloads",
        "Times of different devices",
        "number of calls per task is unknown",
    ):
        assert words in text


def test_the_page_of_a_store_draws_the_best_schedules(tmp_path: Path) -> None:
    sketch = sketches(TASK, space="best")[0]
    point = sketch.sample(1, seed=0)[0].tolist()
    with records.open(tmp_path / "s.sqlite") as store:
        store.append(TASK, records.make_record(TASK, sketch.key, point, timed(1e-4)), sketch)
    (task,) = StorePage(tmp_path / "s.sqlite").build().groups[0].tasks
    assert not task.unseen
    assert [(node.kind, node.extent) for node in task.untuned if isinstance(node, LoopNode)] == [("serial", 16)]
    assert task.chosen != task.untuned
    hurried = StorePage(tmp_path / "s.sqlite", seconds=0.0)
    page = hurried.build()
    assert page.unfinished == ("next update" in page.groups[0].tasks[0].unseen)


def test_pages_show_predictions_and_calls_from_the_logs(tmp_path: Path) -> None:
    store = filled(tmp_path / "s.sqlite", TASK, OTHER)
    calls = {TASK.key: 1, OTHER.key: 3, "odd": "many"}
    correct = {"workload": TASK.key, "status": "ok"}
    log(
        store,
        start={
            "model": "Net",
            "calls": calls,
            "budget": {"trials": 9, "seconds": None},
            "versions": {"felixlike": "7"},
        },
        measured1={**correct, "score": 1.0, "latency": 4e-4},
        measured2={**correct, "score": 2.0, "latency": 2e-4},
        measured3={**correct, "score": None, "latency": 2e-4},
        measured4={**correct, "score": 1.0, "latency": 1e-4, "status": "wrong"},
    )
    store_page = StorePage(store)
    page = store_page.build()
    assert [task.name for task in page.groups[0].tasks] == ["relu32", "relu16"]  # equal latency, but three calls
    assert page.groups[0].share(page.groups[0].tasks[0]) == pytest.approx(0.75)
    assert page.groups[0].tasks[1].pairs == (Pair(1.0, 4e-4), Pair(2.0, 2e-4))
    assert page.spent == {"importing": 2.0, "tuning": 4.0}
    assert dict(page.facts)["Limits"] == "9 trials"
    assert dict(page.facts)["Tuning"] == "4 candidates in 6 s"
    assert "has no end" in page.state
    log(store, end={"report": report().to_json()})
    ended_page = store_page.build()
    assert not ended_page.state
    assert ended_page.spent == {"importing": 2.0, "measuring": 9.0, "else": 4.0}
    assert dict(ended_page.facts)["Maximum error"].startswith("4.0e-07")
    log(store, "20260102T000000-1.jsonl", start={}, error={"message": "KeyError: x"})
    assert "error at 2026-01-01T00:00:00Z: KeyError: x" in store_page.build().state


def test_records_are_read_once_unless_the_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s.sqlite", TASK)
    page = StorePage(store)
    page.build()
    seen = []
    take = StorePage._take

    def recorded_take(self: StorePage, stored: Record) -> None:
        seen.append(stored)
        take(self, stored)

    monkeypatch.setattr(StorePage, "_take", recorded_take)
    filled(store, OTHER)
    assert [task.name for task in page.build().groups[0].tasks] == ["relu16", "relu32"]
    assert len(seen) == 3
    for path in tmp_path.glob("s.sqlite*"):
        path.unlink()
    filled(store, OTHER)
    assert [task.name for task in page.build().groups[0].tasks] == ["relu32"]


def test_a_page_is_written_to_a_file(tmp_path: Path) -> None:
    report().save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page_text(page_of_report(report()))
    with pytest.raises(OutputNotWritable, match=rf"^{tmp_path}: .*directory"):
        write_page(Page("t", (), ()), tmp_path)


def test_notebooks_show_a_table(tmp_path: Path) -> None:
    table = Read(report()._repr_html_())
    assert not table.wrong
    assert table.count("table") == 1
    assert not table.count("svg")
    assert "200 µs" in table.text


def test_a_plot_has_a_panel_for_each_task_with_a_curve() -> None:
    pytest.importorskip("matplotlib")
    figure = report("a $name").plot()
    assert [panel.get_title() for panel in figure.axes if panel.axison] == ["a $name"]
    (line,) = figure.axes[0].get_lines()
    assert line.get_xdata().tolist() == [0.0, 2.5, 12.0]
    assert line.get_ydata().tolist() == pytest.approx([400.0, 200.0, 200.0])
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(InvalidOption, match=r"^dense: .*felixlike compare"):
        report(story=TaskHistory()).plot()


def test_task_histories_round_trip_through_json() -> None:
    data = json.loads(json.dumps(report().to_json()))
    assert "story" not in data["tasks"][1]
    assert Report.from_json(data).tasks[0].story == HISTORY


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": None}, r"story.steps is None"),
        ({"steps": [[1, 2.0]]}, r"story.steps is \[\[1, 2.0\]\]"),
        ({"steps": [[1, 2.0, -1.0]]}, "story has steps or pairs"),
        ({"steps": [[0.5, 2.0, 1.0]]}, "story has steps or pairs"),
        ({"steps": [[1, 2.0, 1e300]]}, "story has steps or pairs"),
        ({"steps": [[1, -2.0, 1.0]]}, "story has steps or pairs"),
        ({"pairs": [[1e300, 1e-3]]}, "story has steps or pairs"),
        ({"pairs": [[1.0, 0]]}, "story has steps or pairs"),
        ({"pairs": [[1.0, None]]}, "story.pairs is"),
        ({"chosen": 3}, "story.chosen is 3"),
        ({"untuned": [["i", "serial", 2, 0]]}, r"story.untuned contains \['i', 'serial', 2, 0\]"),
        ({"untuned": [["i", "serial", True, 0, []]]}, r"story.untuned contains \['i', 'serial', True, 0, \[\]\]"),
        ({"building": "1"}, "story.building is '1'"),
        ({"colour": "red"}, "story.colour "),
    ],
)
def test_edited_task_histories_are_errors(change: dict[str, Any], words: str) -> None:
    data = json.loads(json.dumps(report().to_json()))
    data["tasks"][0]["story"] |= change
    with pytest.raises(InvalidArtefact, match=rf"tasks\[0\].{words}"):
        Report.from_json(data)


def test_deeply_nested_task_histories_are_errors() -> None:
    nodes: list[Any] = ["C"]
    for _ in range(80):
        nodes = [["i", "serial", 2, 0, nodes]]
    with pytest.raises(InvalidArtefact, match=r"story.chosen is .* 64 "):
        TaskHistory.from_json({**HISTORY.to_json(), "chosen": nodes}, "story")
    with pytest.raises(InvalidArtefact, match="story is 3"):
        TaskHistory.from_json(3, "story")


def test_a_task_history_begins_with_the_best_of_earlier_runs() -> None:
    history = History()
    history.known = 3e-4
    for elapsed, seconds in ((1.0, 4e-4), (2.0, 2e-4), (3.0, 1e-4)):
        history.add(elapsed, math.nan, timed(seconds))
    history.add(4.0, 1.0, Measurement(Status.WRONG, build_seconds=1.0))
    task_history = task_history_of(history, chosen=(), untuned=())
    assert task_history.steps == (Step(0, 0.0, 3e-4), Step(2, 2.0, 2e-4), Step(3, 3.0, 1e-4))
    assert task_history.pairs == ()
    assert (task_history.building, task_history.running) == (1.3, 0.06)


def test_predictions_are_thinned() -> None:
    pairs = thinned(range(1000), [1e-3 + step for step in range(1000)])
    assert len(pairs) == MOST_PAIRS
    assert (pairs[0].score, pairs[-1].score) == (0.0, 999.0)
    assert thinned([math.nan, 1.0], [1.0, math.inf]) == ()


@pytest.mark.parametrize(
    ("steps", "until"), [([(0.0, 1e-3)], 0.0), ([(1.0, 1e-3), (1.0, 1e-9)], 5.0), ([(2.0, 3.0), (9.0, 2.99)], 1.0)]
)
def test_curves_of_any_size_are_drawn(steps: list[tuple[float, float]], until: float) -> None:
    page = Read(curve(steps, until))
    assert not page.wrong
    assert page.count("circle") == len(steps)
    assert 2 <= sum(attributes.get("text-anchor") == "end" for _, attributes in page.tags) <= 6
    positions = [
        float(attributes[name] or "") for tag, attributes in page.tags if tag == "circle" for name in ("cx", "cy")
    ]
    assert all(0 <= position <= 340 for position in positions)


def test_equal_points_are_drawn() -> None:
    assert Read(scatter([Pair(0.0, 1e-3)] * 3)).count("circle") == 3
    assert Read(scatter([Pair(1e9, 1e-3), Pair(-1e9, 2.0)])).count("circle") == 2
    assert math.isnan(in_order([Pair(0.0, 1e-3)] * 3))
    assert in_order([Pair(2.0, 1.0), Pair(1.0, 2.0), Pair(3.0, 3.0)]) == pytest.approx(1 / 3)
    assert Read(bars({})).count("div") == 0


def test_impossible_numbers_are_not_drawn(tmp_path: Path) -> None:
    odd = dataclasses.replace(report(), seconds=math.nan, total_seconds=math.inf, spent={"importing": math.nan})
    assert not Read(page_text(page_of_report(odd))).wrong
    with records.open(tmp_path / "s.sqlite") as store:
        for step, seconds in enumerate((0.0, -1.0, 1e300, 3e-4)):
            store.append(TASK, record(dataclasses.replace(timed(1.0), seconds=seconds), point=(step,)))
    for score, seconds in ((1e300, 1e-3), (1.0, 0.0), (1.0, 1e300), (2.0, 1e-3), (3.0, 2e-3)):
        line = {"workload": TASK.key, "status": "ok", "score": score, "latency": seconds}
        log(tmp_path / "s.sqlite", measured=line)
    page = StorePage(tmp_path / "s.sqlite").build()
    (task,) = page.groups[0].tasks
    assert (task.best, task.trials, len(task.steps)) == (3e-4, 4, 1)
    assert task.pairs == (Pair(2.0, 1e-3), Pair(3.0, 2e-3))
    assert not Read(page_text(page)).wrong


def test_drawings_of_long_schedules_are_cut() -> None:
    many = tuple(LoopNode(f"i{number}", "serial", 2, 0, (Statement("C"),)) for number in range(500))
    body = page_body(page_of_report(report(story=dataclasses.replace(HISTORY, chosen=many))))
    assert Read(body).count("div", "loop") < 130
    assert "… and more" in body
