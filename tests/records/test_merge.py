"""Merging, compacting and upgrading stores."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.stores import OTHER, TASK, fill, record, timed, told

from felixlike import records
from felixlike.errors import SourceLeftOut, StoreError
from felixlike.records import make_run
from felixlike.records.schema import VERSION, sealed
from felixlike.symbolic import sketches

OLD = Path(__file__).parents[1] / "data" / "store_version_1.sqlite"
"""A store of version 1."""


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(number)


def test_merging_adds_every_record_once(tmp_path: Path) -> None:
    first_path, second_path = tmp_path / "one.db", tmp_path / "two.db"
    first, second = fill(first_path, 10), fill(second_path, 12, first=10)
    run = make_run([TASK], weights="w", seed=0)
    with records.open(second_path) as store:
        store.append(TASK, first[4])  # in both stores
        other_device = replace(first[4], device="another processor")
        store.append(TASK, other_device)
        store.note_command("{}")
        store.begin(run)
        store.spend(run, 2.5)
    with records.open(first_path) as store:
        result = records.merge(store, second_path)
        assert (result.added, result.known, result.lost, result.damage) == (13, 1, 0, "")
        second_result = records.merge(store, second_path)
        assert (second_result.added, second_result.known) == (0, 14)
        assert [told(r) for r in store.measurements()] == [told(r) for r in [*first, *second, other_device]]
        best = store.best(TASK, device="another processor")
        assert best == other_device
        assert store.commands() == ()  # the other store must not choose the command that `felixlike resume` runs
        assert store.begin(make_run([TASK], weights="w", seed=1)) == 2.5
        assert store.begin(make_run([OTHER], weights="w", seed=1)) == 0.0


def test_merging_a_store_into_itself_or_from_no_store_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    fill(path, 3)
    with records.open(path) as store:
        (tmp_path / "link.db").symlink_to(path)
        for same in (path, tmp_path / "link.db"):
            with pytest.raises(SourceLeftOut, match="itself") as caught:
                records.merge(store, same)
            assert caught.value.where == str(same)
        with pytest.raises(SourceLeftOut, match=r"nowhere\.db: .*no such file"):
            records.merge(store, tmp_path / "nowhere.db")
        with pytest.raises(SourceLeftOut, match=f"{tmp_path}: .*a directory"):
            records.merge(store, tmp_path)
        with pytest.raises(SourceLeftOut, match=r":memory:: .*in memory"):
            records.merge(store, ":memory:")
        (tmp_path / "text").write_text("no store\n" * 2000)
        with pytest.raises(StoreError, match=r"text: .*file is not a database.*none of its measurements"):
            records.merge(store, tmp_path / "text")
        (tmp_path / "empty").touch()
        with pytest.raises(StoreError, match=r"empty: the file is empty: nothing was saved"):
            records.merge(store, tmp_path / "empty")


def test_measurements_of_a_workload_that_is_missing_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    fill(path, 8)
    with sqlite3.connect(path) as connection:  # SQLite checks references only on request
        connection.execute("DELETE FROM workloads WHERE key = ?", (TASK.key,))
    connection.close()
    with records.open() as store:
        merged = records.merge(store, path)
        assert (merged.added, merged.lost) == (8, 0)
        assert "a row of measurements belongs to no row of workloads" in merged.damage
        assert sorted(workload.name for workload in store.workloads()) == ["(lost)", OTHER.name]


def test_a_store_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "one.db", 3)
    fill(tmp_path / "two.db", 3, first=3)
    store = records.open(tmp_path / "one.db")
    store.file.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match=r"one\.db: .*readonly") as caught:
        records.merge(store, tmp_path / "two.db")
    assert not isinstance(caught.value, SourceLeftOut)


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from felixlike import records
from support.stores import TASK, record, timed
with records.open(sys.argv[2]) as store:
    print("ready", flush=True)
    for step in range(60):
        store.append(TASK, record(timed(1.0), point=(1000, step)))
print("done", flush=True)
"""


def test_merging_while_another_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.records.merging.ROWS_AT_ONCE", 5)
    shared, other = tmp_path / "shared.db", tmp_path / "other.db"
    fill(shared, 2)
    written = fill(other, 100, first=2)
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parents[2]), str(shared)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with records.open(shared) as store:
            assert records.merge(store, other).added == 100
        assert process.stdout.readline() == "done\n"
    with records.open(shared) as store:
        merged = {told(r) for r in store.measurements()}
        assert store.count() == 162
        points = [r.point for r in store.measurements() if r.point[0] == 1000]
    assert {told(r) for r in written} <= merged
    assert points == [(1000, step) for step in range(60)]


def test_compacting_keeps_every_measurement(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    written = fill(path, 40)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE room (x BLOB)")
    connection.execute("INSERT INTO room VALUES (zeroblob(2000000))")
    connection.commit()
    connection.execute("DROP TABLE room")
    connection.commit()
    connection.close()
    with records.open(path) as store, store.file.transaction():
        store.add_rows("workloads", [sealed(("key", "never measured", "module", "target", 1.0))])
    result = records.compact(path)
    assert result.before > 2_000_000 > result.after
    assert result.measurements == 40
    with records.open(path) as store:
        assert [told(r) for r in store.measurements()] == [told(r) for r in written]
        assert [w.name for w in store.workloads()] == ["relu16", "relu32"]
    with pytest.raises(StoreError, match=r"nowhere\.db: .*no such file"):
        records.compact(tmp_path / "nowhere.db")


def test_a_damaged_store_is_not_compacted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    fill(path, 5)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE measurements SET point = '[1]' WHERE id = 3")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"store\.db: .*row.*checksum"):
        records.compact(path)
    assert path.read_bytes() == before


def test_an_old_store_is_read_unchanged_and_upgraded_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    shutil.copy(OLD, path)
    before = path.read_bytes()
    with records.open(path, read_only=True) as store:
        old = [told(r) for r in store.measurements()]
        summary = store.summary()
        with pytest.raises(StoreError, match=r"old\.sqlite: .*readonly"):
            store.append(TASK, record(timed(1.0)))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["old.sqlite"]
    assert len(old) > 5000
    with records.open(path) as store:
        assert [told(r) for r in store.measurements()] == old
        assert store.summary() == summary
        store.append(TASK, record(timed(1.0)))
    assert version(path) == VERSION
    with records.open() as new:
        assert records.merge(new, OLD).added == len(old)
        assert records.merge(new, path).added == 1
    assert OLD.read_bytes() == before


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.sqlite"
    shutil.copy(OLD, path)
    monkeypatch.setattr("felixlike.records.migrations.TABLES", ("CREATE TABLE workloads (oops",))
    with pytest.raises(StoreError, match="incomplete input"):
        records.open(path)
    assert version(path) == 1
    monkeypatch.undo()
    with records.open(path) as store:
        assert store.count() > 5000


def test_the_trace_of_a_sketch_is_stored(tmp_path: Path) -> None:
    sketch = sketches(TASK)[0]
    point = tuple(sketch.sample(1, 0)[0].tolist())
    with records.open(tmp_path / "store.db") as store:
        stored = replace(record(timed(1.0), point=point), sketch=sketch.key)
        store.append(TASK, stored, sketch)
        trace = store.trace(TASK.key, sketch.key)
        assert trace == sketch.trace_json()
        assert store.trace(TASK.key, "other") is None
