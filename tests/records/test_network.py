"""Stores in folders that the table of mounts lists as network file systems do not use WAL."""

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
    """A folder that the table of mounts lists as NFS."""
    folder = tmp_path / "shared"
    folder.mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 8:1 / / rw - ext4 disk rw\n2 1 0:50 / {folder} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(mounts, "TABLE", table)
    return folder


def journal(path: Path) -> bytes:
    """Return the bytes of the header that give the journal mode."""
    return path.read_bytes()[18:20]


WAL, ROLLBACK = b"\2\2", b"\1\1"


def test_a_new_store_on_nfs_uses_a_rollback_journal(shared: Path, tmp_path: Path) -> None:
    for path, expected in ((shared / "store.db", ROLLBACK), (tmp_path / "store.db", WAL)):
        fill(path, 3)
        assert journal(path) == expected
    with records.open(shared / "store.db") as store:
        assert store.file.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert store.file.execute("PRAGMA locking_mode").fetchone() == ("normal",)
        store.append(TASK, record(timed(2.0), point=(77,)))
        assert [p.name for p in shared.iterdir()] == ["store.db"]
    assert [p.name for p in shared.iterdir()] == ["store.db"]


def test_a_store_copied_to_nfs_changes_its_journal_when_written(shared: Path, tmp_path: Path) -> None:
    """The records in its write-ahead log are read too."""
    local, remote = tmp_path / "store.db", shared / "store.db"
    fill(local, 3)
    with records.open(local) as store:
        store.append(TASK, record(timed(2.0), point=(77,)))
        for end in ("", "-wal"):
            Path(f"{remote}{end}").write_bytes(Path(f"{local}{end}").read_bytes())
    before = remote.read_bytes()
    with records.open(remote, read_only=True) as store:
        assert store.count() == 4
    assert (remote.read_bytes(), sorted(p.name for p in shared.iterdir())) == (before, ["store.db", "store.db-wal"])
    with records.open(remote) as store:
        assert store.count() == 4
        assert [p.name for p in shared.iterdir()] == ["store.db"]
    assert journal(remote) == ROLLBACK
    with records.open(remote, read_only=True) as store:
        assert store.count() == 4


def test_a_store_keeps_its_rollback_journal_on_a_local_disk(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared / "store.db"
    written = fill(path, 3)
    monkeypatch.setattr(mounts, "TABLE", Path("/proc/self/mountinfo"))
    with records.open(path) as store:
        assert [told(r) for r in store.measurements()] == [told(r) for r in written]
        store.append(TASK, record(timed(2.0), point=(77,)))
    assert journal(path) == ROLLBACK


def test_a_store_that_another_program_has_open_in_wal_mode_is_an_error(
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


def test_several_processes_write_one_store(shared: Path) -> None:
    path = shared / "store.db"
    spawning = multiprocessing.get_context("spawn")
    argument_lists = [(str(path), str(mounts.TABLE), process) for process in range(2)]
    processes = [spawning.Process(target=_append, args=arguments) for arguments in argument_lists]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0]
    with records.open(path) as store:
        assert store.count() == 40
        store.file.check()
