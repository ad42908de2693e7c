"""Folders for temporary files go with their process, however it ends, and never those of another one that lives."""

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

MAKES = """
import sys
from felixlike._util import scratch
path = scratch.folder("work")
(path / "file").write_text("some")
print(path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test, and a process that has made none yet."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(scratch, "_has_swept", False)
    monkeypatch.setattr(scratch, "_home", None)
    return place


def another() -> tuple[subprocess.Popen[str], Path]:
    """A process that has made a folder and waits."""
    process = subprocess.Popen([sys.executable, "-c", MAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def ended(process: subprocess.Popen[str], number: int = 0) -> None:
    if number:
        process.send_signal(number)
    process.communicate(timeout=60)


def test_a_process_leaves_nothing(base: Path) -> None:
    process, path = another()
    assert path.is_relative_to(base)
    assert (path / "file").read_text() == "some"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    ended(process)
    assert list(base.iterdir()) == []


def test_what_killed_processes_left_is_removed_by_the_next(base: Path) -> None:
    living, kept = another()
    killed, left = another()
    ended(killed, signal.SIGKILL)
    assert (left / "file").exists()
    own = scratch.folder("own")
    assert not left.parent.exists()
    assert (kept / "file").exists()
    assert own.exists()
    ended(living)
    scratch.discard(own)
    assert list(base.iterdir()) == []


def test_a_forked_child_keeps_its_parents_folder(base: Path) -> None:
    """The child still uses what the parent made."""
    program = MAKES.replace(
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
    scratch._has_swept, scratch._home = False, None
    deadline = time.monotonic() + 60
    while path.exists() and time.monotonic() < deadline:
        scratch._sweep(base)
    assert not path.exists()


def test_what_is_not_ours_is_left_alone(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_empty_home_goes_and_comes_back(base: Path) -> None:
    with scratch.temporary("a") as first:
        kept = scratch.folder("b")
        assert first.parent == kept.parent
    assert not first.exists()
    assert kept.exists()
    scratch.discard(kept)
    assert list(base.iterdir()) == []
    assert scratch.folder("c").is_dir()
    (home,) = base.iterdir()
    shutil.rmtree(home)  # as programs that clean up do
    assert scratch.folder("d").is_dir()


def test_without_locks_nothing_is_swept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    (base / "felixlike.7.abc").mkdir()
    monkeypatch.setattr("fcntl.flock", refuse)
    path = scratch.folder("a")
    assert path.parent.name.startswith("felixlike-unlocked.")
    assert (base / "felixlike.7.abc").exists()


def test_memory_where_there_is_no_folder_for_temporary_files(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(scratch, "_MEMORY", memory)
    base.rmdir()
    base.write_text("a file in its place")
    assert scratch.folder("a").is_relative_to(memory)
    assert scratch.folder("b").parent.parent == memory
    shutil.rmtree(memory)
    with pytest.raises(
        OutputNotWritable, match=r"no folder for temporary files can be made: Not a directory\. set TMPDIR"
    ):
        scratch.folder("c")

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(OutputNotWritable, match="no folder for temporary files"):
        scratch.folder("d")
