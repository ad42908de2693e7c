"""A run log holds every event as a line of JSON. Its failures do not end a run."""

import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import workloads

from felixlike.frontend.task import make_task
from felixlike.hardware import resolve_target
from felixlike.measure import Measurement, Status
from felixlike.report import RunLog, runlog
from felixlike.search import Candidate
from felixlike.symbolic import sketches
from felixlike.tuning import Budget, Event, TaskState


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def event() -> Event:
    task = make_task(workloads.matmul(8, 8, 8), resolve_target("cpu"), name="product")
    sketch = sketches(task)[0]
    point = tuple(sketch.sample(1, seed=0)[0].tolist())
    candidate = Candidate(sketch, point, math.nan, "random")
    measurement = Measurement(Status.WRONG, error=math.inf, message="differs")
    return Event(TaskState(task, np.random.default_rng(0)), 0, Budget(trials=4), measurement, candidate)


def test_every_event_is_a_line(tmp_path: Path, event: Event) -> None:
    with RunLog(tmp_path / "store.sqlite") as log:
        log.write("start", model="m")
        log.event(Event(event.state, 0, event.budget))
        log.event(event)
    (path,) = (tmp_path / "store.sqlite.logs").iterdir()
    assert path == log.path
    assert path.name.endswith(f"-{os.getpid()}.jsonl")
    start, begun, measured = lines(path)
    assert (start["event"], start["model"]) == ("start", "m")
    assert (begun["event"], begun["task"], begun["best"]) == ("round", "product", None)
    assert (measured["event"], measured["status"], measured["message"]) == ("measured", "wrong", "differs")
    assert measured["latency"] is None
    assert event.candidate is not None
    assert measured["score"] is None
    assert measured["point"] == list(event.candidate.point)


def test_a_line_has_the_predicted_score(tmp_path: Path, event: Event) -> None:
    assert event.candidate is not None
    with RunLog(tmp_path / "store.sqlite") as log:
        log.event(replace(event, candidate=replace(event.candidate, score=2.5)))
    assert log.path is not None
    assert lines(log.path)[0]["score"] == 2.5


def test_an_error_is_the_last_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lost"), RunLog(tmp_path / "s") as log:
        raise ValueError("lost")
    assert log.path is not None
    assert lines(log.path)[-1]["message"] == "ValueError: lost"


def test_runs_of_the_same_second_have_separate_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.gmtime(0)
    monkeypatch.setattr(time, "gmtime", lambda: started)
    logs = [RunLog(tmp_path / "store") for _ in range(3)]
    for number, log in enumerate(logs):
        with log:
            log.write("start", run=number)
    names = [f"19700101T000000-{os.getpid()}{suffix}.jsonl" for suffix in ("", "-2", "-3")]
    assert [log.path for log in logs] == [tmp_path / "store.logs" / name for name in names]
    assert [lines(path)[0]["run"] for log in logs if (path := log.path)] == [0, 1, 2]


def test_without_a_store_there_is_no_log() -> None:
    with RunLog(None) as log:
        log.write("start")
    assert log.path is None


def test_a_log_that_cannot_be_written_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "store.logs").write_text("a file where the folder should be")
    with RunLog(tmp_path / "store") as log:
        log.write("start")
    with open("/dev/full", "w") as full, RunLog(None) as log:
        log._file = full
        log.write("start")
        log.write("end")
        assert log._file is None


def test_old_logs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are removed by age and by size. The latest ones and other files are not removed."""
    folder = tmp_path / "store.logs"
    folder.mkdir()
    for number in range(30):
        path = folder / f"20250101T0000{number:02}-7.jsonl"
        path.write_text("x" * 10)
        os.utime(path, (time.time() - (80 + number) * 86400,) * 2)
    note = folder / "note.txt"
    note.write_text("")
    os.utime(note, (0, 0))

    def remaining() -> int:
        return len([path for path in folder.iterdir() if path.name.startswith("20250101")])

    with RunLog(tmp_path / "store") as log:
        assert remaining() == 19  # plus the log of this run
    assert log.path is not None
    log.path.unlink()
    for path in folder.glob("20250101*"):
        os.utime(path, (time.time() - 86400,) * 2)
    for number in range(30):
        (folder / f"20250102T0000{number:02}-7.jsonl").write_text("x" * 10)
    monkeypatch.setattr(runlog, "MOST_BYTES", 125)
    with RunLog(tmp_path / "store") as log:
        assert log.path is not None
        assert log.path.exists()
        assert len(list(folder.iterdir())) == 20 + 12 + 1
    assert note.exists()
