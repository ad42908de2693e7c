"""Temporary folders are removed with their process, however it ends, and folders of other live processes are kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from felixlike._util import scratch
from felixlike.errors import OutputNotWritable

FOLDER_PROGRAM = """
import sys
from felixlike._util import scratch
path = scratch.folder("work")
(path / "file").write_text("some")
print(path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty folder for temporary files, and reset the module's state."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(scratch, "_has_swept", False)
    monkeypatch.setattr(scratch, "_homes", [])
    return folder


def start_process() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that creates a folder and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOLDER_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], number: int = 0) -> None:
    if number:
        process.send_signal(number)
    process.communicate(timeout=60)


def test_a_process_removes_its_folder_when_it_ends(base: Path) -> None:
    process, path = start_process()
    assert path.is_relative_to(base)
    assert (path / "file").read_text() == "some"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    end(process)
    assert list(base.iterdir()) == []


def test_folders_of_killed_processes_are_removed_by_the_next_process(base: Path) -> None:
    living, living_folder = start_process()
    killed, killed_folder = start_process()
    end(killed, signal.SIGKILL)
    assert (killed_folder / "file").exists()
    new_folder = scratch.folder("own")
    assert not killed_folder.parent.exists()
    assert (living_folder / "file").exists()
    assert new_folder.exists()
    end(living)
    scratch.discard(new_folder)
    assert list(base.iterdir()) == []


def test_a_forked_child_keeps_its_parents_folder(base: Path) -> None:
    """A folder stays while a forked child of its creator lives, and is removed after the child ends."""
    program = FOLDER_PROGRAM.replace(
        "print(path", "import os\nif os.fork() == 0:\n    sys.stdin.read()\n    os._exit(0)\nprint(path"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    process.kill()
    process.wait(60)
    scratch.folder("own")
    assert (path / "file").exists()
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()
    scratch._has_swept, scratch._homes = False, []
    deadline = time.monotonic() + 60
    while path.exists() and time.monotonic() < deadline:
        scratch._sweep(base)
    assert not path.exists()


def test_foreign_folders_are_not_swept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "felixlike.7.file").write_text("no folder")
    (base / "elsewhere").mkdir()
    (base / "felixlike.7.link").symlink_to(base / "elsewhere")
    for name in ("felixlike-tests-abc", "felixlike-unlocked.7.abc", "felixlike-new.fresh", "other"):
        (base / name).mkdir()
    before = {path.name for path in base.iterdir()}
    scratch._sweep(base)
    assert {path.name for path in base.iterdir()} == before
    (base / "felixlike.7.abc").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    scratch._sweep(base)
    assert (base / "felixlike.7.abc").exists()
    monkeypatch.undo()
    os.utime(base / "felixlike-new.fresh", (1e9, 1e9))
    scratch._sweep(base)
    assert {path.name for path in base.iterdir()} == before - {"felixlike-new.fresh"}


def test_an_empty_parent_folder_is_removed_and_recreated(base: Path) -> None:
    with scratch.temporary("a") as first:
        second = scratch.folder("b")
        assert first.parent == second.parent
    assert not first.exists()
    assert second.exists()
    scratch.discard(second)
    assert list(base.iterdir()) == []
    assert scratch.folder("c").is_dir()
    (home,) = base.iterdir()
    shutil.rmtree(home)  # as clean-up programs do
    assert scratch.folder("d").is_dir()


def test_without_locks_nothing_is_swept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    (base / "felixlike.7.abc").mkdir()
    monkeypatch.setattr("fcntl.flock", refuse)
    path = scratch.folder("a")
    assert path.parent.name.startswith("felixlike-unlocked.")
    assert (base / "felixlike.7.abc").exists()


def test_memory_is_used_if_the_temporary_folder_is_unusable(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(scratch, "MEMORY_FOLDER", memory)
    base.rmdir()
    base.write_text("a file in its place")
    assert scratch.folder("a").is_relative_to(memory)
    assert scratch.folder("b").parent.parent == memory
    shutil.rmtree(memory)
    with pytest.raises(OutputNotWritable, match="Not a directory") as caught:
        scratch.folder("c")
    assert caught.value.where == str(base)
    assert "TMPDIR" in caught.value.remedy

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(OutputNotWritable, match="temporary files") as caught:
        scratch.folder("d")
    assert caught.value.where == str(base)
    assert "TMPDIR" in caught.value.remedy
