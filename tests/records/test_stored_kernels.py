"""Compiler data of GPU kernels is stored with measurements, also in files of versions without that column."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.stores import TASK, fill, record, timed

from felixlike import records
from felixlike.hardware.occupancy import Kernel
from felixlike.records.record import Record
from felixlike.records.salvage import salvage
from felixlike.records.schema import COLUMNS, VERSION, from_row, opened, to_row

KERNELS = (Kernel("main_kernel", 168, 16432, 43008, 128), Kernel("main_kernel_1", 15, 0, 0, 1024))


def compiled(seconds: float) -> Record:
    return record(replace(timed(seconds), kernels=KERNELS))


def of_version_2(path: Path) -> None:
    """Convert a store of the current version to version 2."""
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE measurements DROP COLUMN kernels")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()


def test_kernels_round_trip_through_a_row() -> None:
    with_kernels = compiled(1.0)
    assert from_row(to_row(with_kernels)) == with_kernels
    assert from_row(to_row(record(timed(1.0)))).measurement.kernels == ()
    assert COLUMNS[-1] == "kernels"


def test_stores_without_kernels_are_upgraded(tmp_path: Path) -> None:
    path, new = tmp_path / "store.sqlite", tmp_path / "new.sqlite"
    fill(path, 3)
    with records.open(path, read_only=True) as store:
        before = list(store.measurements())
    of_version_2(path)
    with records.open(path, read_only=True) as store:
        assert repr(list(store.measurements())) == repr(before)  # NaN differs from itself
    with records.open(path) as store:
        assert repr(list(store.measurements())) == repr(before)  # NaN differs from itself
        store.append(TASK, compiled(1.0))
        assert [r.measurement.kernels for r in store.measurements()] == [(), (), (), KERNELS]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    with records.open(new) as store:
        assert records.merge(store, path).added == 4
        assert records.merge(store, path).known == 4
        assert [r.measurement.kernels for r in store.measurements()][-1] == KERNELS


def test_rows_of_both_versions_are_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    fill(path, 3)
    of_version_2(path)
    with records.open(path) as store:
        store.append(TASK, compiled(1.0))
    rows = {row for table, _, row in salvage(path) if table == "measurements"}
    assert sorted(len(from_row(opened(row)).measurement.kernels) for row in rows) == [0, 0, 0, 2]


def test_a_changed_kernel_is_a_damaged_row(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with records.open(path) as store:
        store.append(TASK, compiled(1.0))
        (row,) = store.rows("measurements")
    for kernels in ("", row[-2].replace("168", "64")):
        with pytest.raises(ValueError, match="checksum"):
            opened((*row[:-2], kernels, row[-1]))
