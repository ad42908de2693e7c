"""Paths of stores: valid and invalid ones, checked when a store is opened."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sqlite3
from pathlib import Path

import pytest
from support.stores import TASK, fill, record, timed, told

from felixlike import records
from felixlike.errors import SourceLeftOut, StoreError
from felixlike.report import RunLog


@pytest.mark.parametrize("name", [None, ":memory:"])
def test_stores_in_memory_write_no_files(name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with records.open(name) as store, RunLog(name) as log:
        store.append(TASK, record(timed(1.0)))
        log.write("start")
        assert store.count() == 1
        assert store.path is log.path is None
    with records.open(name) as store:
        assert store.count() == 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(StoreError, match=r"in memory: .*empty"):
        records.open(name, read_only=True)
    with pytest.raises(StoreError, match=r":memory:: .*disk"):
        records.compact(":memory:")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", r"store: '' .*\":memory:\" or None"),
        ("  ", "store: '' "),
        ("a\0b", r"store: 'a\\x00b' "),
        (5, "store: 5 "),
        ("file:runs.sqlite", r"file:runs\.sqlite: .*URIs.* \./file:runs\.sqlite"),
        ("file::memory:?cache=shared", r"file::memory:\?cache=shared: .*URIs"),
    ],
)
def test_invalid_names_are_errors(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=words):
        records.open(name)
    assert not list(tmp_path.iterdir())


def test_unusual_file_names_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./file:runs.sqlite", "a ?b=c#d%20.sqlite", ":memory:.sqlite"):
        fill(Path(name), 2)
        assert Path(name).is_file()
        with records.open(name) as store:
            assert store.count() == 2


def test_paths_of_other_kinds_than_files_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    paths = {
        tmp_path: "a directory",
        Path("/dev/null"): "a device",
        tmp_path / "pipe": "a named pipe",
        tmp_path / "socket": "a socket",
        tmp_path / "nowhere" / "store.db": f"directory {tmp_path / 'nowhere'}",
    }
    for path, words in paths.items():
        for read_only in (False, True):
            with pytest.raises(StoreError, match=words) as caught:
                records.open(path, read_only=read_only)
            assert caught.value.where == str(path)


def test_stores_can_be_opened_through_a_symbolic_link(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "store.db")
    written = fill(link, 3)
    assert link.is_symlink()
    with records.open(tmp_path / "store.db") as store:
        assert [told(r) for r in store.measurements()] == [told(r) for r in written]


def denied(*refused: Path) -> object:
    """Return a fake `os.access` that denies writing to these paths; the tests may run as root."""

    def access(path: str | Path, mode: int) -> bool:
        return not (mode & os.W_OK and Path(path) in refused)

    return access


def test_read_only_stores_are_errors_when_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    fill(path, 3)
    monkeypatch.setattr(os, "access", denied(path))
    with pytest.raises(StoreError, match=r"store\.db: .*read-only: the file"):
        records.open(path)
    with records.open(path, read_only=True) as store:
        assert store.count() == 3
    monkeypatch.setattr(os, "access", denied(tmp_path))
    for name in ("store.db", "new.db"):
        with pytest.raises(StoreError, match=rf"{name}: .*read-only: the directory {tmp_path} "):
            records.open(tmp_path / name)
    with records.open(path, read_only=True) as store:
        assert store.count() == 3
    assert [p.name for p in tmp_path.iterdir()] == ["store.db"]


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    fill(path, 3)
    (tmp_path / "store.db-wal").mkdir()  # so that SQLite's log cannot be written
    with pytest.raises(StoreError, match=r"store\.db: .*file and its directory are writable"):
        records.open(path)


def test_the_log_of_a_read_only_store_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, copied = tmp_path / "store.db", tmp_path / "there" / "store.db"
    copied.parent.mkdir()
    fill(path, 3)
    with records.open(path) as store:
        store.append(TASK, record(timed(2.0), point=(77,)))
        shutil.copy(path, copied)
        shutil.copy(f"{path}-wal", f"{copied}-wal")
    monkeypatch.setattr(os, "access", denied(copied.parent))
    with records.open(copied, read_only=True) as store:
        assert store.count() == 4
    with records.open() as other:
        assert records.merge(other, copied).added == 4
    assert sorted(p.name for p in copied.parent.iterdir()) == ["store.db", "store.db-wal"]


@pytest.mark.parametrize("times", [1, 1000])
def test_a_store_is_copied_again_if_a_new_log_begins_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    path, copy, copies = tmp_path / "store.db", shutil.copyfile, list[Path]()
    fill(path, 3)
    with records.open(path) as writer:
        writer.extend(TASK, [record(timed(2.0), point=(step,)) for step in range(200)])

        def disturbed(source: Path, target: Path) -> None:
            copy(source, target)
            if source == path and len(copies) < times:
                copies.append(target)
                writer.file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                writer.append(TASK, record(timed(2.0), point=(1000 + len(copies),)))

        monkeypatch.setattr(shutil, "copyfile", disturbed)
        monkeypatch.setattr(os, "access", denied(tmp_path))
        if times == 1:
            with records.open(path, read_only=True) as store:
                assert len(list(store.measurements())) == store.count() == 204
        else:
            with pytest.raises(StoreError, match=r"store\.db: .*another process writes much"):
                records.open(path, read_only=True)
            with records.open() as other, pytest.raises(SourceLeftOut, match="another process writes much"):
                records.merge(other, path)
    assert copies
    assert not any(target.parent.exists() for target in copies)


def test_a_store_that_cannot_be_copied_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "store.db"
    fill(path, 3)
    with records.open(path) as writer:
        writer.append(TASK, record(timed(2.0)))
        monkeypatch.setattr(shutil, "copyfile", full)
        monkeypatch.setattr(os, "access", denied(tmp_path))
        with pytest.raises(StoreError, match=r"store\.db: .*No space left on device.*TMPDIR"):
            records.open(path, read_only=True)


def test_what_a_killed_process_has_begun_is_undone_in_a_read_only_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores on network file systems have a rollback journal."""
    path, killed = tmp_path / "store.db", tmp_path / "killed" / "store.db"
    killed.parent.mkdir()
    with records.open(path) as store:
        store.extend(TASK, [record(timed(2.0), point=(step,)) for step in range(200)])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA cache_size = 1")  # so that changed pages are written before the end
    connection.execute("BEGIN")
    connection.execute("UPDATE measurements SET message = 'not committed'")
    for end in ("", "-journal"):
        shutil.copy(f"{path}{end}", f"{killed}{end}")
    connection.close()
    assert b"not committed" in killed.read_bytes()
    monkeypatch.setattr(os, "access", denied(killed.parent))
    with records.open(killed, read_only=True) as store:
        assert [r.measurement.message for r in store.measurements()] == [""] * 200
    assert sorted(p.name for p in killed.parent.iterdir()) == ["store.db", "store.db-journal"]
