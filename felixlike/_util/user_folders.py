"""Find the user's folders for caches and data, lock files in them, and warn once if they cannot be used.

Input: the environment (XDG_CACHE_HOME, XDG_DATA_HOME, HOME). Output: folders and locks, or None and one
`StorageWarning` per process. A home may not exist, be read-only, be full, or be on a file system without locks.
Callers then keep in memory what they would have stored in files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import platformdirs

from felixlike._util.mounts import is_network
from felixlike.errors import FelixlikeError, StorageWarning, callers_level, first_line

LOCK_SECONDS = 60.0
"""Seconds to wait for a lock. The work done under one, compiling a program, takes seconds."""

_POLL_SECONDS = 0.02
"""Seconds between attempts to take a lock."""


def cache_folder() -> Path | None:
    """Return the folder of everything that may be deleted, or None for a user without a home. It need not exist."""
    return _absolute(platformdirs.user_cache_dir)


def data_folder() -> Path | None:
    """Return the folder of what must not be deleted, or None for a user without a home. It need not exist."""
    return _absolute(platformdirs.user_data_dir)


def store_path() -> Path | None:
    """Return the path of the record store of `torch.compile`, or None without a home. It may be unusable.

    On a network file system the name contains this host's name, so that each host has its own store: locks are
    reliable only within one host.
    """
    folder = data_folder()
    if folder is None:
        return None
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    return folder / (f"compiled-{host}.sqlite" if is_network(folder) and host else "compiled.sqlite")


def default_store() -> Path | None:
    """Return the path of the record store of `torch.compile`, in an existing folder.

    Returns None, with the warning, if it cannot be written.
    """
    path = store_path()
    if path is None:
        unusable("the home directory", OSError(errno.ENOENT, "it is unknown"))
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for needed in (path.parent, path):
            if needed.exists() and not os.access(needed, os.W_OK):
                raise PermissionError(errno.EACCES, "it is not writable")
    except OSError as error:
        unusable(path.parent, error)
        return None
    return path


def _absolute(place: Callable[[str], str]) -> Path | None:
    """Return a folder of this package, or None if the home is not known or the folder is relative."""
    try:
        path = Path(place("felixlike"))
    except RuntimeError:  # the home is not known; earlier versions of platformdirs return "~/…"
        return None
    return path if path.is_absolute() else None


# -- locks -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path, *, seconds: float | None = None) -> Iterator[bool]:
    """Hold a lock that other processes respect, and yield whether it is held.

    It is not held if another process holds it for `seconds`, or, with the warning, if the file cannot be made or
    locked. The lock ends with the process that holds it. The file exists only while it is in use.

    path: path of the lock file, whose folder is made.  seconds: None for `LOCK_SECONDS`.
    """
    file: IO[str] | None = None
    consequence = _LOST
    try:
        # With access for this user only, since `private_files` refuses a folder that others may write to.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        consequence = _UNLOCKED
        file = _acquired(path, time.monotonic() + (LOCK_SECONDS if seconds is None else seconds))
    except OSError as error:
        unusable(path.parent, error, consequence=consequence)
    if file is None:
        yield False
        return
    with file:
        try:
            yield True
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _acquired(path: Path, deadline: float) -> IO[str] | None:
    """Return the locked file, or None after the deadline.  Raises OSError."""
    while True:
        file = open(path, "a", opener=_opened)  # noqa: SIM115  closed by the caller
        try:
            if not _flocked(file, deadline):
                file.close()
                return None
            if _is_at(file, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # the previous holder has removed the file


def _opened(path: str, flags: int) -> int:
    """Open a lock file. A link that another user has put in its place is not followed, a named pipe not waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _flocked(file: IO[str], deadline: float) -> bool:
    """Lock a file, and return False if that fails until the deadline."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _is_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


# -- the warning -------------------------------------------------------------------------------------------------------

_guard = threading.Lock()
_told = False
"""Whether the warning was issued."""
_waiting = ""
"""Text of the warning that is due."""
_runs = 0
"""Number of `held_back` blocks that run."""


_LOST = "Results are kept in memory instead, and the next process computes them again"
_UNLOCKED = "Files in it cannot be locked, so processes may do the same work at the same time"


def unusable(place: Path | str, error: BaseException, *, consequence: str = _LOST) -> None:
    """Record that a folder or file cannot be used, and warn about the first one of a process.

    Inside `held_back` the warning is issued when `warn` is called.

    consequence: effect for the user, in the warning's words.
    """
    global _waiting
    with _guard:
        if _told:
            return
        _waiting = _waiting or (
            f"{place} cannot be used ({_reason(error)}). {consequence}. Set XDG_CACHE_HOME and XDG_DATA_HOME to"
            " writable folders on a local disk."
        )
        is_held_back = _runs > 0
    if not is_held_back:
        warn()


def _reason(error: BaseException) -> str:
    """Return an error's message without the path."""
    if isinstance(error, FelixlikeError):
        return error.what
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Delay the warning during a block. The caller then calls `warn` or `pending`.

    A warning filter may turn it into an error, which must not interrupt a search.
    """
    global _runs
    with _guard:
        _runs += 1
    try:
        yield
    finally:
        with _guard:
            _runs -= 1


def pending() -> StorageWarning | None:
    """Return the warning that is due, once, or None."""
    global _told, _waiting
    with _guard:
        text, _waiting = _waiting, ""
        _told = _told or bool(text)
    return StorageWarning(text) if text else None


def warn() -> None:
    """Issue the warning that is due, if any."""
    warning = pending()
    if warning is not None:
        warnings.warn(warning, stacklevel=callers_level())
