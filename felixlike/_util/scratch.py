"""Make folders for temporary files that are removed when their process has ended, also if it was killed.

In: a purpose. Out: an empty folder. Each process has one folder of its own below the system's folder for temporary
files, and holds a lock on it (flock), which the kernel releases when the process ends, whatever ends it. A process that
makes its first folder removes those of the same user whose lock is free. A folder that cannot be locked gets a name
that this does not look for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from felixlike.errors import OutputNotWritable

LOCKED, _NEW, _UNLOCKED = "felixlike.", "felixlike-new.", "felixlike-unlocked."
"""What the names of folders begin with: while their process holds the lock, before it does, and where it never can."""

_NEW_SECONDS = 3600.0
"""The age of a folder whose process was killed before it held the lock.  It does so within milliseconds."""

_MEMORY = Path("/dev/shm")
"""A file system in memory, used where the system has no folder for temporary files that can be written."""


def folder(purpose: str) -> Path:
    """Make an empty folder.  It is removed at the end of this process if it is still there.

    purpose: the beginning of its name.  Raises OutputNotWritable where none can be made."""
    with _lock:
        return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_own_home().path))


@contextlib.contextmanager
def temporary(purpose: str) -> Iterator[Path]:
    """Make an empty folder that is removed at the end of the block.  Raises OutputNotWritable as `folder` does."""
    path = folder(purpose)
    try:
        yield path
    finally:
        discard(path)


def discard(path: Path) -> None:
    """Remove a folder that `folder` made, also in another process, and its process's own folder if that is empty."""
    shutil.rmtree(path, ignore_errors=True)
    if path.parent.name.startswith((LOCKED, _UNLOCKED)):
        with _lock, contextlib.suppress(OSError):
            path.parent.rmdir()


class _Home:
    """A process's own folder.  process: its number.  base: the folder that holds it."""

    def __init__(self, base: Path) -> None:
        self.process, self.base = os.getpid(), base
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=base))
        lock = _held(new)
        start = _UNLOCKED if lock is None else LOCKED
        self.path = new.rename(base / f"{start}{self.process}.{secrets.token_hex(6)}")
        weakref.finalize(self, _dispose, self.path, lock, self.process)


_lock = threading.Lock()
_home: _Home | None = None
_has_swept = False


def _own_home() -> _Home:
    """Return this process's own folder, made if it is not there."""
    global _home, _has_swept
    failure: OSError | None = None
    for base in _bases():
        if _home is not None and _home.process == os.getpid() and _home.base == base and _home.path.is_dir():
            return _home
        try:
            if not _has_swept:
                _sweep(base)
            _home, _has_swept = _Home(base), True
            return _home
        except OSError as error:
            failure = failure or error
    raise OutputNotWritable(
        f"no folder for temporary files can be made{f': {failure.strerror}' if failure else ''}",
        where=os.environ.get("TMPDIR", "TMPDIR"),
        remedy="set TMPDIR to a folder that can be written and has room",
    ) from failure


def _bases() -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):  # there is none that can be written
        yield Path(tempfile.gettempdir())
    if _MEMORY.is_dir():
        yield _MEMORY


def _sweep(base: Path) -> None:
    """Remove the folders of processes of this user that have ended."""
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith((LOCKED, _NEW)):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    if path.name.startswith(_NEW) and time.time() - found.st_mtime < _NEW_SECONDS:
        return
    lock = _held(path)
    if lock is not None:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _held(path: Path) -> int | None:
    """Return the descriptor of a folder with the lock on it; None where another process holds it or there are none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _dispose(path: Path, lock: int | None, process: int) -> None:
    """Remove a process's own folder; a forked process that ends leaves its parent's alone."""
    if os.getpid() != process:
        return
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _after_fork() -> None:
    """Give the child a lock of its own: another thread of the parent may have held the parent's."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
