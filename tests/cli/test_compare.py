"""Tests for `felixlike compare`, which compares stores."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.stores import OTHER, TASK, record, timed

from felixlike import records
from felixlike.cli import main
from felixlike.errors import InvalidOption
from felixlike.frontend.task import Task
from felixlike.measure.measurement import Measurement, Status
from felixlike.report.comparison import PAUSE, Comparison, compare
from felixlike.report.comparison_text import comparison_text, draw
from felixlike.training.packed import pack

FAILED = Measurement(Status.CRASHED, build_seconds=0.5, run_seconds=0.25)


def fill_store(
    path: Path,
    latencies: Sequence[float | None],
    *,
    task: Task = TASK,
    device: str = "a CPU",
    times: Sequence[float] = (),
) -> Path:
    """Write a store with these latencies in seconds (None for failures), measured one second apart, and return it."""
    with records.open(path) as store:
        for step, seconds in enumerate(latencies):
            measurement = FAILED if seconds is None else timed(seconds)
            at = times[step] if times else 100.0 + step
            store.append(task, replace(record(measurement, task, (step,)), device=device, time=at))
    return path


def compared(*paths: Path) -> Comparison:
    stores = {path.stem: records.open(path, read_only=True) for path in paths}
    try:
        return compare(stores)
    finally:
        for store in stores.values():
            store.close()


def test_the_table_shows_when_each_store_reached_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = fill_store(tmp_path / "quick.sqlite", [None, 2e-4, 1e-4])
    slow = fill_store(tmp_path / "slow.sqlite", [4e-4, 3e-4, 2e-4, 1.06e-4])
    assert main(["compare", str(quick), str(slow)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    times = ["3", "(2.8", "s)"]  # the first candidate took its build and run time
    assert ["relu16", "quick", "3", "2", "2.8", "100", "µs", "100.0%", *times, *times, *times] in lines
    assert ["relu16", "slow", "4", "4", "3.1", "106", "µs", "94.3%", "4", "(3.1", "s)", "–", "–"] in lines
    assert ["quick", "1", "1", "100.0%"] in lines
    assert ["slow", "1", "0", "94.3%"] in lines


def test_devices_are_compared_separately(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = fill_store(tmp_path / "here.sqlite", [2e-4], device="a CPU")
    there = fill_store(tmp_path / "there.sqlite", [1e-6], device="simulated CPU")
    assert main(["compare", str(here), str(there)]) == 0
    text = capsys.readouterr().out
    assert "(a CPU: here; simulated CPU: there)" in text
    assert text.count("100.0%") == 2
    devices = compared(here, there).to_json()["devices"]
    assert [(group["device"], [s["store"] for s in group["tasks"][0]["stores"]]) for group in devices] == [
        ("a CPU", ["here"]),
        ("simulated CPU", ["there"]),
    ]


def test_json_contains_the_curves_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = fill_store(tmp_path / "one.sqlite", [4e-4, 5e-4, 2e-4])
    none = fill_store(tmp_path / "none.sqlite", [None, None])
    assert main(["compare", str(one), str(none), "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    first, second = device["tasks"][0]["stores"]
    assert [candidates for candidates, _, _ in first["curve"]] == [1, 3]
    assert first["curve"][-1][1:] == pytest.approx([2.12, 2e-4])
    assert first["reached"]["0.95"]["candidates"] == 3
    assert (second["best"], second["curve"], second["reached"]["0.9"]) == (None, [], None)
    assert device["stores"][1]["share"] is None


def test_elapsed_seconds_skip_pauses_and_clock_jumps(tmp_path: Path) -> None:
    times = [100.0, 103.0, 103.0 + PAUSE + 1.0, 50.0, 51.0]
    store = fill_store(tmp_path / "store.sqlite", [1e-4, None, 1e-4, 1e-4, 1e-4], times=times)
    (side,) = compared(store).groups[0].tasks[0].sides
    assert side.series.elapsed.tolist() == pytest.approx([0.12, 3.12, 3.24, 3.36, 4.36])


def test_elapsed_seconds_are_counted_per_task(tmp_path: Path) -> None:
    path = tmp_path / "two.sqlite"
    with records.open(path) as store:
        for step, task in enumerate([TASK, TASK, OTHER, TASK]):
            new_record = replace(record(timed(1e-4), task, (step,)), device="a CPU", time=100.0 + 2 * step)
            store.append(task, new_record)
    elapsed = {task.name: task.sides[0].series.seconds for task in compared(path).groups[0].tasks}
    assert elapsed == pytest.approx({"relu16": 0.12 + 2.0 + 2.0, "relu32": 2.0})


def test_tasks_of_one_store_are_skipped_with_a_note(tmp_path: Path) -> None:
    one = fill_store(tmp_path / "one.sqlite", [1e-4])
    fill_store(one, [1e-4], task=OTHER)
    other = fill_store(tmp_path / "other.sqlite", [2e-4])
    comparison = compared(one, other)
    assert [task.name for task in comparison.groups[0].tasks] == ["relu16"]
    (note,) = comparison.notes
    assert "1 task on a CPU " in note


def test_tasks_with_the_same_name_are_labelled_by_key(tmp_path: Path) -> None:
    path = fill_store(tmp_path / "one.sqlite", [1e-4])
    namesake = replace(OTHER, name=TASK.name)
    fill_store(path, [2e-4], task=namesake)
    (group,) = compared(path).groups
    assert [group.label(task) for task in group.tasks] == [f"relu16 {t.key[:8]}" for t in (TASK, namesake)]


def test_stores_that_cannot_be_compared_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = fill_store(tmp_path / "one.sqlite", [1e-4])
    other = fill_store(tmp_path / "other.sqlite", [1e-4], task=OTHER)
    empty = tmp_path / "empty.sqlite"
    records.open(empty).close()
    foreign = tmp_path / "foreign.sqlite"
    foreign.write_text("no store")
    with pytest.raises(InvalidOption, match=r"^compare: .*one, other .*task"):
        compared(one, other)
    for paths, words in (
        ([one, empty], "felixlike: empty: .*measurement"),
        ([one, foreign], "felixlike: .*foreign.sqlite: "),
        ([one, tmp_path / "nowhere.sqlite"], "felixlike: .*nowhere.sqlite: "),
        ([one, tmp_path / "." / "one.sqlite"], "felixlike: .*one.sqlite: .*twice"),
    ):
        assert main(["compare", *map(str, paths)]) == 1
        assert re.search(words, capsys.readouterr().err)


def test_stores_with_the_same_name_and_packed_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        fill_store(tmp_path / folder / "runs.sqlite", [1e-4])
    packed = tmp_path / "packed.sqlite.xz"
    pack(tmp_path / "a" / "runs.sqlite", packed)
    paths = [str(tmp_path / "a" / "runs.sqlite"), str(tmp_path / "b" / "runs.sqlite"), str(packed)]
    assert main(["compare", *paths, "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert [store["store"] for store in device["stores"]] == [*paths[:2], "packed"]


def test_curves_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="curves are drawn by matplotlib")
    one = fill_store(tmp_path / "one.sqlite", [2e-4, 1e-4])
    other = fill_store(tmp_path / "other.sqlite", [None, 3e-4])
    image = tmp_path / "curves.svg"
    assert main(["compare", str(one), str(other), "--output", str(image)]) == 0
    assert f"Drawn in {image}." in capsys.readouterr().out
    assert image.read_text().count("<svg") == 1
    assert draw(compared(one, other), tmp_path / "curves.png") == 1
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", str(one), "--output", str(tmp_path / "curves")]) == 1
    assert re.search(r"/curves: .*\.svg", capsys.readouterr().err)
    assert main(["compare", str(one), "--output", str(tmp_path / "curves.xyz")]) == 1
    assert re.search(r"/curves\.xyz: .*xyz", capsys.readouterr().err)


@pytest.mark.parametrize("width", [40, 80])
def test_tables_fit_the_width(tmp_path: Path, width: int) -> None:
    one = fill_store(tmp_path / "one.sqlite", [2e-4, 1e-4])
    text = comparison_text(compared(one), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "relu16" in text
