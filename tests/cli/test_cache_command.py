"""Tests for `felixlike cache`: the sizes that it prints, and the files that it removes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import fill

from felixlike._util import cache, user_folders
from felixlike.cli import main
from felixlike.report import RunLog


@pytest.fixture
def store(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fill the store of torch.compile, a run's log and three cache entries, and return the store's path."""
    monkeypatch.setenv("XDG_DATA_HOME", str(own_cache.parent / "data"))
    path = user_folders.default_store()
    assert path is not None
    fill(path, 3)
    with RunLog(path) as log:
        log.write("start")
    cache.store("smooth", "a", "x" * 2000)
    cache.store("smooth", "b", 1)
    cache.store("predicted", "c", 1)
    return path


def test_cache_prints_sizes(store: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == [
        f"cache: {own_cache}",
        "  predicted: 1 file, 1 bytes",
        "  smooth: 2 files, 2.0 KiB",
        "  total: 3 files, 2.0 KiB",
    ]
    assert printed[4].endswith(" beyond 4.0 GiB.")
    assert "90 days" in printed[4]
    assert printed[5].startswith(f"store of torch.compile: {store}: ")
    assert printed[6].startswith("  run logs: 1 file, ")


def test_clear_removes_cache_entries_and_run_logs_only(
    store: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (note,) = [store.parent / "compiled.sqlite.logs" / "a note of mine.jsonl"]
    note.write_text("{}")
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out.startswith("Removed 4 files, 2.")
    assert cache.entries() == []
    assert [path.name for path in own_cache.rglob("*") if path.is_file()] == [".trimmed"]
    assert store.stat().st_size > 0
    assert list(note.parent.iterdir()) == [note]
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == "Removed 0 files, 0 bytes.\n"


def test_cache_of_a_user_without_files(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(own_cache / "data"))
    assert main(["cache"]) == 0
    printed = capsys.readouterr().out
    assert "total: 0 files, 0 bytes" in printed
    assert printed.endswith(f"{own_cache}/data/felixlike/compiled.sqlite: none yet\n  run logs: 0 files, 0 bytes\n")
    assert not own_cache.exists()
    monkeypatch.setattr(user_folders, "cache_folder", lambda: None)
    monkeypatch.setattr(user_folders, "store_path", lambda: None)
    assert main(["cache"]) == 0
    assert "cache: none" in capsys.readouterr().out
