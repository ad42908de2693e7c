"""Make temporary folders that are removed after their process has ended, even if it was killed.

Input: a purpose. Output: an empty folder. Each process has one folder below the system's folder for temporary
files, and holds a lock on it (flock), which the kernel releases when the process ends for any reason. A process
that makes its first folder removes the same user's folders whose lock is free. A folder that cannot be locked has a
name that this cleanup ignores.
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
"""Prefixes of folder names: while the process holds the lock, before it does, and if locking is impossible."""

_NEW_SECONDS = 3600.0
"""Age in seconds after which a folder without a lock belongs to a killed process. Locking takes milliseconds."""

MEMORY_FOLDER = Path("/dev/shm")
"""File system in memory, used if the system has no writable folder for temporary files."""


def folder(purpose: str) -> Path:
    """Make an empty folder, which is removed at the end of this process if it still exists.

    purpose: prefix of its name.  Raises OutputNotWritable if no folder can be made.
    """
    with _lock:
        return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_own_home().path))


@contextlib.contextmanager
def temporary(purpose: str) -> Iterator[Path]:
    """Make an empty folder that is removed at the end of the block.  Raises OutputNotWritable like `folder`."""
    path = folder(purpose)
    try:
        yield path
    finally:
        discard(path)


def discard(path: Path) -> None:
    """Remove a folder of `folder`, possibly of another process, and the folder of its process if that is empty."""
    shutil.rmtree(path, ignore_errors=True)
    if path.parent.name.startswith((LOCKED, _UNLOCKED)):
        with _lock, contextlib.suppress(OSError):
            path.parent.rmdir()


def base() -> Path | None:
    """Return the folder below which temporary folders are made; None without one."""
    return next(_bases(), None)


class _Home:
    """Hold the folder of a process.

    Attributes:
        process: Process id.
        base: Parent folder.
        path: The folder itself.
    """

    def __init__(self, base: Path) -> None:
        self.process, self.base = os.getpid(), base
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=base))
        lock = _held(new)
        start = _UNLOCKED if lock is None else LOCKED
        self.path = new.rename(base / f"{start}{self.process}.{secrets.token_hex(6)}")
        weakref.finalize(self, _dispose, self.path, lock, self.process)


_lock = threading.Lock()
_homes: list[_Home] = []
"""Folders of this process, which are removed when it ends: one, unless the folder for temporary files has changed."""
_has_swept = False


def _own_home() -> _Home:
    """Return this process's folder, and make it if it does not exist."""
    global _has_swept
    failure: OSError | None = None
    for base in _bases():
        for home in _homes:
            if home.process == os.getpid() and home.base == base and home.path.is_dir():
                return home
        try:
            if not _has_swept:
                _sweep(base)
            _homes.append(_Home(base))
            _has_swept = True
            return _homes[-1]
        except OSError as error:
            failure = failure or error
    raise OutputNotWritable(
        f"cannot create a folder for temporary files{f': {failure.strerror}' if failure else ''}",
        where=os.environ.get("TMPDIR", "TMPDIR"),
        remedy="set TMPDIR to a writable folder with free space",
    ) from failure


def _bases() -> Iterator[Path]:
    """Yield the folders in which to make temporary ones, in order of preference."""
    with contextlib.suppress(FileNotFoundError):  # no writable folder
        yield Path(tempfile.gettempdir())
    if MEMORY_FOLDER.is_dir():
        yield MEMORY_FOLDER


def _sweep(base: Path) -> None:
    """Remove the folders of this user's processes that have ended."""
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith((LOCKED, _NEW)):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    """Remove a folder if it belongs to this user and its process has ended."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    if path.name.startswith(_NEW) and time.time() - status.st_mtime < _NEW_SECONDS:
        return
    lock = _held(path)
    if lock is not None:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _held(path: Path) -> int | None:
    """Return the descriptor of a locked folder.

    Returns None if another process holds the lock or locks are not supported.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _dispose(path: Path, lock: int | None, process: int) -> None:
    """Remove a process's folder. A forked process leaves its parent's folder alone."""
    if os.getpid() != process:
        return
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _after_fork() -> None:
    """Give the child process a new lock, because another thread of the parent may have held the parent's."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
