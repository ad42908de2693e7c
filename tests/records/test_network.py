"""Stores on network file systems, as the table of mounts says of a folder: never WAL there."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest
from support.stores import TASK, fill, record, timed, told

from felixlike import records
from felixlike._util import mounts
from felixlike.errors import StoreError
from felixlike.records import file as files


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is said to be on a file server."""
    folder = tmp_path / "shared"
    folder.mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 8:1 / / rw - ext4 disk rw\n2 1 0:50 / {folder} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(mounts, "TABLE", table)
    return folder


def journal(path: Path) -> bytes:
    """What the file itself says."""
    return path.read_bytes()[18:20]


WAL, ROLLBACK = b"\2\2", b"\1\1"


def test_a_new_store(shared: Path, tmp_path: Path) -> None:
    for path, wanted in ((shared / "store.db", ROLLBACK), (tmp_path / "store.db", WAL)):
        fill(path, 3)
        assert journal(path) == wanted
    with records.open(shared / "store.db") as store:
        assert store.file.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert store.file.execute("PRAGMA locking_mode").fetchone() == ("normal",)
        store.append(TASK, record(timed(2.0), point=(77,)))
        assert [p.name for p in shared.iterdir()] == ["store.db"]
    assert [p.name for p in shared.iterdir()] == ["store.db"]


def test_a_store_that_was_made_elsewhere(shared: Path, tmp_path: Path) -> None:
    """With what its log holds."""
    here, there = tmp_path / "store.db", shared / "store.db"
    fill(here, 3)
    with records.open(here) as store:
        store.append(TASK, record(timed(2.0), point=(77,)))
        for end in ("", "-wal"):
            Path(f"{there}{end}").write_bytes(Path(f"{here}{end}").read_bytes())
    before = there.read_bytes()
    with records.open(there, read_only=True) as store:
        assert store.count() == 4
    assert (there.read_bytes(), sorted(p.name for p in shared.iterdir())) == (before, ["store.db", "store.db-wal"])
    with records.open(there) as store:
        assert store.count() == 4
        assert [p.name for p in shared.iterdir()] == ["store.db"]
    assert journal(there) == ROLLBACK
    with records.open(there, read_only=True) as store:
        assert store.count() == 4


def test_a_store_keeps_its_journal_on_the_servers_own_disk(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared / "store.db"
    written = fill(path, 3)
    monkeypatch.setattr(mounts, "TABLE", Path("/proc/self/mountinfo"))
    with records.open(path) as store:
        assert [told(r) for r in store.measurements()] == [told(r) for r in written]
        store.append(TASK, record(timed(2.0), point=(77,)))
    assert journal(path) == ROLLBACK


def test_a_store_that_another_program_has_open_with_a_log(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shared / "store.db"
    fill(tmp_path / "store.db", 3)
    path.write_bytes((tmp_path / "store.db").read_bytes())
    monkeypatch.setattr(files, "BUSY_MILLISECONDS", 100)
    other = sqlite3.connect(path)
    other.execute("SELECT count(*) FROM measurements").fetchone()
    with pytest.raises(StoreError, match=r"store\.db: .*(locked|network file system)"):
        records.open(path)
    other.close()
    with records.open(path) as store:
        assert store.count() == 3


def _append(path: str, table: str, process: int) -> None:
    mounts.TABLE = Path(table)
    with records.open(path) as store:
        for number in range(20):
            store.append(TASK, record(timed(1.0 + number), point=(process, number)))


def test_processes_take_turns(shared: Path) -> None:
    path = shared / "store.db"
    spawning = multiprocessing.get_context("spawn")
    given = [(str(path), str(mounts.TABLE), process) for process in range(3)]
    processes = [spawning.Process(target=_append, args=arguments) for arguments in given]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with records.open(path) as store:
        assert store.count() == 60
        store.file.check()
