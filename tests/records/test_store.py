"""Stores in files and in memory return what was appended and raise descriptive errors."""

import math
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.stores import OTHER, TASK, fill, newer, record, timed, told

from felixlike import _tvm, records
from felixlike.errors import InvalidOption, StoreError
from felixlike.measure.measurement import Measurement, Status
from felixlike.records import Store
from felixlike.records.metaschedule import export_database, import_database
from felixlike.records.schema import VERSION


def wrongly_typed(value: Any) -> Any:
    """Return a value of a wrong type without a type error of mypy."""
    return value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_appended_records_are_read_back(path: Path) -> None:
    written = [record(timed(1e-3)), record(Measurement(Status.CRASHED, message="its process died of SIGSEGV\n“…”"))]
    with records.open(path) as store:
        for appended in written:
            store.append(TASK, appended)
        failed = list(store.measurements())[1].measurement
    with records.open(path) as store:
        records_read = list(store.measurements())
    assert records_read[0] == written[0]
    assert replace(records_read[1], measurement=failed) == replace(written[1], measurement=failed)  # its spread is nan
    assert failed.message == written[1].measurement.message
    assert failed.seconds == math.inf
    assert math.isnan(failed.spread)


def test_the_best_is_the_fastest_ok_of_the_task_on_this_device() -> None:
    with records.open() as store:
        assert store.best(TASK) is None
        for measurement in (timed(3e-3), timed(2e-3), Measurement(Status.OK, math.nan), Measurement(Status.WRONG)):
            store.append(TASK, record(measurement))
        store.append(OTHER, record(timed(1e-6), OTHER))
        other_device = replace(record(timed(1e-3)), device="another processor")
        store.append(TASK, other_device)
        best = store.best(TASK)
        assert best is not None
        assert best.measurement.seconds == 2e-3
        assert store.best(TASK, device="another processor") == other_device


def test_records_without_a_time_are_not_the_best() -> None:
    with records.open() as store:
        store.append(TASK, record(Measurement(Status.OK, math.nan, error=1e-7)))
        assert store.best(TASK) is None
        (only,) = store.measurements()
        assert math.isnan(only.measurement.seconds)


def test_measurements_after_a_number_are_read(tmp_path: Path) -> None:
    written = fill(tmp_path / "s", 7)
    with records.open(tmp_path / "s") as store:
        assert list(map(told, store.measurements(after=4))) == list(map(told, written[4:]))
        assert list(map(told, store.measurements(OTHER, after=4))) == [told(written[5])]
        assert list(store.measurements(after=7)) == []


def test_measurements_of_a_task_are_read_lazily_in_order() -> None:
    with records.open() as store:
        for step in range(5):
            store.append(TASK, record(timed(1.0 - step / 10), point=(step,)))
            store.append(OTHER, record(timed(1.0), OTHER))
        rows = store.measurements(TASK)
        assert next(rows).point == (0,)
        store.append(OTHER, record(timed(1.0), OTHER))  # appended while the records are being read
        assert [row.point for row in rows] == [(1,), (2,), (3,), (4,)]
        assert len(list(store.measurements())) == 11


def test_a_record_of_another_task_is_refused() -> None:
    with records.open() as store, pytest.raises(ValueError, match=rf"{TASK.key}.*{OTHER.key} \(relu32\)"):
        store.append(OTHER, record(timed(1.0)))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda store: store.append(5, record(timed(1.0))), r"Store: .*\btask\b.*an int\..*extract_tasks"),
        (lambda store: store.extend(TASK, [7]), r"Store: .*\brecord\b.*an int\..*make_record"),
        (lambda store: store.best(5), r"Store: .*\btask\b.*an int\..*, or its key"),
        (lambda store: store.best("key"), "Store: .*device=…"),
        (lambda store: store.best("key", device=3), r"device: .*\bdevice\b.* 3\."),
        (lambda store: store.fastest(TASK, -1), r"Store.fastest: .*\bcount\b.* -1\."),
        (lambda store: store.fastest(TASK, "3"), r"Store.fastest: .*\bcount\b.* '3'\."),
        (lambda store: next(store.measurements(5)), r"Store: .*\btask\b.*an int\."),
    ],
)
def test_wrong_tasks_and_records_are_errors(ask: Callable[[Store], Any], words: str) -> None:
    with records.open() as store, pytest.raises(InvalidOption, match=words):
        ask(store)


@pytest.mark.parametrize("wrong", [5, True, b"store", ["store"], "", "a\0b"])
def test_wrong_paths_are_errors(wrong: Any) -> None:
    with pytest.raises(StoreError, match=r"str or pathlib\.Path") as caught:
        records.open(wrong)
    assert repr(wrong) in caught.value.what
    assert caught.value.where == "store"


def test_all_measurements_of_a_task_are_found_by_its_key() -> None:
    with records.open() as store:
        for step in range(3):
            store.append(TASK, record(timed(1.0 - step / 10), point=(step,)))
        assert [row.point for row in store.fastest(TASK, None)] == [(2,), (1,), (0,)]
        assert len(list(store.measurements(TASK.key))) == 3


def test_the_workload_is_stored_once_with_its_module(path: Path) -> None:
    with records.open(path) as store:
        store.append(TASK, record(timed(1.0)))
        store.append(TASK, record(timed(1.0)))
    with sqlite3.connect(path) as connection:
        ((name, module, flops),) = connection.execute("SELECT name, module, flops FROM workloads").fetchall()
    connection.close()
    assert (name, flops) == ("relu16", TASK.flops)
    _tvm.ir.assert_structural_equal(_tvm.ir.load_json(module), TASK.module)


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from felixlike import records
from support.stores import TASK, record, timed
with records.open(sys.argv[2]) as store:
    for step in range(40):
        store.append(TASK, record(timed(1.0), point=(int(sys.argv[3]), step)))
    print("done", flush=True)
    sys.stdin.read()
"""


def writer(path: Path, number: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parents[2]), str(path), str(number)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_processes_that_share_a_file_lose_no_records(path: Path) -> None:
    with writer(path, 0) as one, writer(path, 1) as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
            process.kill()
    with records.open(path) as store:
        points = [row.point for row in store.measurements()]
    for number in (0, 1):
        assert [point for point in points if point[0] == number] == [(number, step) for step in range(40)]


def test_threads_that_create_one_file_open_it_as_a_store(tmp_path: Path) -> None:
    count, rounds = 4, 25
    barrier = threading.Barrier(count)

    def create(_: int) -> int:
        created = 0
        for index in range(rounds):
            barrier.wait(20)
            with Store(tmp_path / f"{index}.sqlite"):
                created += 1
        return created

    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(create, range(count))) == [rounds] * count


def filled(path: Path) -> None:
    with records.open(path) as store:
        for step in range(200):
            store.append(TASK, record(timed(1.0), point=tuple(range(step, step + 20))))


def not_a_database(path: Path) -> None:
    path.write_text("seconds,point\n" * 1000)


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE birds (name TEXT)")
    connection.close()


def truncated(path: Path) -> None:
    filled(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwritten(path: Path) -> None:
    filled(path)
    content = bytearray(path.read_bytes())
    content[4096:20000] = b"\xff" * (20000 - 4096)
    path.write_bytes(content)


def of_unknown_status(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE measurements SET status = 'excellent'")
    connection.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (not_a_database, r"store\.db: .*file is not a database.*felixlike merge"),
        (of_another_program, r"store\.db: .*another program"),
        (
            newer,
            rf"store\.db: .*version 7\b.* {VERSION}\..*newer felixlike",
        ),
        (truncated, r"store\.db: .*damaged.*felixlike merge"),
        (overwritten, r"store\.db: .*damaged.*felixlike merge"),
        (of_unknown_status, r"store\.db: .*row.*checksum"),
        (lambda path: path.mkdir(), r"store\.db: .*a directory\..*a file in it"),
    ],
    ids=["text", "birds", "newer", "truncated", "overwritten", "status", "directory"],
)
def test_bad_files_are_errors(path: Path, make: Callable[[Path], None], words: str) -> None:
    make(path)
    with pytest.raises(StoreError, match=words), records.open(path) as store:
        list(store.measurements())


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"store\.db: .*directory .*/nowhere\."):
        records.open(tmp_path / "nowhere" / "store.db")


def test_a_path_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(StoreError, match=r"/proc/store\.db: unable to open database file.*writable"):
        records.open("/proc/store.db")


def test_a_locked_file_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.records.file.BUSY_MILLISECONDS", 10)
    with records.open(path) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="database is locked"):
            store.append(TASK, record(timed(1.0)))
        holder.close()
        store.append(TASK, record(timed(1.0)))
        assert len(list(store.measurements())) == 1


def test_a_closed_store_is_an_error() -> None:
    store = Store()
    store.close()
    store.close()
    with pytest.raises(StoreError, match="in memory: Cannot operate on a closed database"):
        store.append(TASK, record(timed(1.0)))


def test_a_relative_path_to_an_empty_file_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.db").touch()
    with records.open("empty.db") as store:
        store.append(TASK, record(timed(1.0)))
    with records.open(tmp_path / "empty.db") as store:
        assert len(list(store.measurements())) == 1


def test_lookups_use_an_index() -> None:
    with records.open() as store:
        store.append(TASK, record(timed(1.0)))
        seen: list[str] = []
        store.file.connection.set_trace_callback(seen.append)
        store.best(TASK)
        store.summary()
        store.file.connection.set_trace_callback(None)
        plans = [
            " ".join(str(row[3]) for row in store.file.execute(f"EXPLAIN QUERY PLAN {query}").fetchall())
            for query in seen
            if "FROM measurements" in query
        ]
    assert len(plans) == 2
    assert "SEARCH measurements USING INDEX fastest (task=? AND device=? AND status=?" in plans[0]
    assert "B-TREE" not in plans[0]
    assert "USING COVERING INDEX fastest" in plans[1]


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda _: records.compact(wrongly_typed(5)), StoreError, "store: 5 "),
        (lambda store: records.merge(store, wrongly_typed(5)), StoreError, "store: 5 "),
        (
            lambda _: records.merge(wrongly_typed("a"), "b"),
            InvalidOption,
            r"merge: .*\bstore\b.*a str\..*records\.open",
        ),
        (lambda store: import_database(store, wrongly_typed(b"x")), StoreError, "folder: b'x' "),
        (lambda store: export_database(store, wrongly_typed(None)), StoreError, "folder: None "),
        (lambda _: export_database(wrongly_typed("a"), "b"), InvalidOption, r"\bstore\b.*a str\."),
        (lambda store: export_database(store, "x", best=-1), InvalidOption, r"export: .*\bbest\b.* -1\."),
        (
            lambda store: export_database(store, "x", device=wrongly_typed(5)),
            InvalidOption,
            r"device: .*\bdevice\b.* 5\.",
        ),
        (lambda store: export_database(store, __file__), StoreError, r"test_store\.py: .*got a file"),
        (lambda store: list(store.numbered(5)), InvalidOption, r"\bnumbers\b.*an int\."),
        (lambda store: list(store.numbered(["x"])), InvalidOption, r"\bnumber\b.*'x'\."),
        (
            lambda _: records.make_record(wrongly_typed(5), "k", (), timed(1)),
            InvalidOption,
            r"make_record: .*\btask\b.*an int\.",
        ),
        (
            lambda _: records.make_record(TASK, "k", (), wrongly_typed(None)),
            InvalidOption,
            r"make_record: .*\bmeasurement\b.*None\.",
        ),
    ],
)
def test_arguments_of_wrong_types_are_errors(ask: Callable[[Store], Any], error: type[Exception], words: str) -> None:
    with records.open() as store, pytest.raises(error, match=words):
        ask(store)
