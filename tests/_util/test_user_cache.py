"""The user's cache: falls back to memory if it cannot be written, and is limited by age and size."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from felixlike._util import cache, user_folders
from felixlike.errors import StorageWarning

DAY = 86400.0


@pytest.fixture
def root(own_cache: Path) -> Path:
    """Return the root folder of this test's cache."""
    return own_cache


def put(root: Path, name: str, *, days: float = 0.0, size: int = 10) -> Path:
    """Write a file that was last used `days` days ago."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_entries_are_stored_and_listed(root: Path) -> None:
    assert cache.load("a", "x") is None
    cache.store("a", "x", {"one": [1, 2.5, None]})
    assert cache.load("a", "x") == {"one": [1, 2.5, None]}
    (entry,) = cache.entries()
    assert (entry.path, entry.kind, entry.bytes) == (root / "a" / "x.json", "a", len('{"one": [1, 2.5, null]}'))
    (root / "a" / "x.json").write_bytes(b"\xff")
    assert cache.load("a", "x") is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_memory_is_used_if_the_cache_cannot_be_written(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    cache.store("a", "old", 1)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(StorageWarning, match=os.strerror(number)) as caught:
        cache.store("a", "new0", 0)
    for value in (1, 2):  # a second warning would be an error here
        cache.store("a", f"new{value}", value)
    assert len(caught) == 1
    assert [cache.load("a", key) for key in ("old", "new0", "new2", "none")] == [1, 0, 2, None]
    assert names(root) == {"a/old.json", ".trimmed"}


def test_a_failed_store_leaves_no_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(StorageWarning):
        cache.store("a", "x", 1)
    assert names(root) == set()
    assert cache.load("a", "x") == 1


def test_memory_is_used_if_the_folder_is_a_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.write_text("no folder")
    with pytest.warns(StorageWarning) as caught:
        cache.store("a", "x", 1)
    cache.store("b", "x", 2)
    assert len(caught) == 1
    assert (cache.load("a", "x"), cache.load("b", "x")) == (1, 2)
    assert cache.entries() == []
    assert cache.clear() == []
    assert cache.load("a", "x") is None


def test_entries_unused_for_ninety_days_are_removed(root: Path) -> None:
    put(root, "a/old.json", days=91)
    put(root, "b/old.felix", days=1000)
    put(root, "a/new.json", days=89)
    put(root, "b/future.felix", days=-400)
    assert {entry.path.name for entry in cache.trim()} == {"old.json", "old.felix"}
    assert names(root) == {"a/new.json", "b/future.felix"}


def test_the_least_recently_used_entries_are_removed_over_the_size_limit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        put(root, f"{'ab'[number % 2]}/{number}.json", days=number, size=100)
    assert cache.trim() == []
    monkeypatch.setattr(cache, "MOST_BYTES", 399)
    assert {entry.path.stem for entry in cache.trim()} == {"3", "4", "5"}


def test_the_time_of_use_is_updated_once_a_day(root: Path) -> None:
    recent, older = put(root, "a/recent.json", days=0.5), put(root, "a/older.json", days=80)
    for path in (recent, older):
        path.write_text("1")
    os.utime(recent, (time.time() - 0.5 * DAY,) * 2)
    os.utime(older, (time.time() - 80 * DAY,) * 2)
    before = recent.stat().st_mtime
    assert cache.load("a", "recent") == cache.load("a", "older") == 1
    assert recent.stat().st_mtime == before
    assert time.time() - older.stat().st_mtime < 1000


def test_leftovers_of_killed_processes_are_removed(root: Path) -> None:
    put(root, "a/written.part", days=0.01)
    put(root, "a/left.part", days=0.1)
    put(root, "tc/.felixlike-00.partial", days=0.1)
    free = put(root, "tc/free.lock", days=0.1)
    held = root / "tc" / "held.lock"
    with user_folders.locked(held) as locked:
        assert locked
        os.utime(held, (time.time() - DAY,) * 2)
        assert {entry.path.name for entry in cache.trim()} == {"left.part", ".felixlike-00.partial", "free.lock"}
        assert held.exists()
        assert {entry.path.name for entry in cache.clear()} == {"written.part"}
        assert held.exists()
    assert not free.exists()
    assert cache.entries() == []


def test_limits_are_checked_once_a_day(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[float] = []
    monkeypatch.setattr(cache, "trim", lambda: trims.append(1.0))
    cache.store("a", "x", 1)
    cache.store("a", "y", 1)
    assert len(trims) == 1
    os.utime(root / ".trimmed", (time.time() - 2 * DAY,) * 2)
    cache.store("a", "z", 1)
    cache.store("a", "z", 2)
    assert len(trims) == 2
    os.utime(root / ".trimmed", (time.time() + 2 * DAY,) * 2)  # as if the clock had been wrong
    cache.store("a", "z", 3)
    assert len(trims) == 3


def test_trim_tolerates_files_that_another_process_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "a/old.json", days=91)
    beyond = cache.beyond

    def removed_meanwhile(*args: Any, **options: Any) -> list[cache.Entry]:
        outdated = beyond(*args, **options)
        for entry in outdated:
            entry.path.unlink()
        return outdated

    with monkeypatch.context() as patch:
        patch.setattr(cache, "beyond", removed_meanwhile)
        assert cache.trim() == []
    put(root, "a/old.json", days=91)
    assert len(cache.trim()) == 1


def test_large_entries_are_written_piece_by_piece_and_limited_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content(file: IO[bytes]) -> None:
        for _ in range(8):
            file.write(b"x" * 100)

    cache.store("a", "today", 1)  # the limits were checked today
    monkeypatch.setattr(cache, "MOST_BYTES", 2000)
    monkeypatch.setattr(cache, "LARGE_BYTES", 800)
    put(root, "models/first.flx", days=0.01, size=800)
    put(root, "a/small.json", days=2, size=100)
    put(root, "a/old.json", days=3, size=500)
    assert cache.write("models", "second.flx", content)
    assert (root / "models" / "second.flx").read_bytes() == b"x" * 800
    assert names(root) == {".trimmed", "a/today.json", "a/small.json", "models/first.flx", "models/second.flx"}


def test_removed_large_entries_leave_their_space_to_small_ones(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 1000)
    put(root, "models/new.flx", size=700)
    put(root, "models/old.flx", days=1, size=700)
    put(root, "a/small.json", days=2, size=100)
    assert {entry.path.name for entry in cache.trim()} == {"old.flx"}


def test_a_failed_large_entry_leaves_no_file(root: Path) -> None:
    def content(file: IO[bytes]) -> None:
        file.write(b"x")
        raise ValueError("of the writer")

    with pytest.raises(ValueError, match="of the writer"):
        cache.write("models", "torn.flx", content)
    assert names(root) == set()


@pytest.mark.parametrize(("free", "most"), [(2**40, 500), (800, 200), (0, 0)])
def test_one_entry_takes_half_of_the_cache_and_a_quarter_of_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch, free: int, most: int
) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert cache.most_entry_bytes("models") == most


def test_an_unusable_cache_takes_no_large_entries(root: Path) -> None:
    root.write_text("no folder")
    with pytest.warns(StorageWarning):
        assert cache.most_entry_bytes("models") == 0
