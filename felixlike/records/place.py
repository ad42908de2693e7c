"""Convert and check the location of a store.

The input is None, ":memory:" or a path. The output is a path, or None for a store in memory. A location that SQLite
would interpret differently than the user raises StoreError.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from felixlike._util import option_checks
from felixlike.errors import StoreError

MEMORY = ":memory:"
"""SQLite's name for a database in memory, which is lost when it is closed."""

WRITABLE = "check that the file and its directory are writable, or copy the store to a writable directory"
"""Remedy for a store that is read-only."""

UNREADABLE = "the file is not readable"
"""The error text for a store that this user may not read."""

UNCOPIED = "it cannot be copied to be read"
"""The beginning of the error text for a store that must be copied first."""

_HOW = 'give the path of a file, or ":memory:" or None for a store in memory'
_KINDS = (
    (stat.S_ISDIR, "a directory", "give the path of a file in it"),
    (stat.S_ISFIFO, "a named pipe", "give the path of a file"),
    (stat.S_ISSOCK, "a socket", "give the path of a file"),
    (stat.S_ISCHR, "a device", "give the path of a file"),
    (stat.S_ISBLK, "a device", "give the path of a file"),
)


def path_of(store: str | os.PathLike[str] | None) -> Path | None:
    """Return the path of a store.

    Args:
        store: Path of the file; None or ":memory:" for a store in memory.

    Returns:
        The path, or None for a store in memory.

    Raises:
        StoreError: `store` is not a path, is empty, or is one of SQLite's URIs, which would be taken for a file's name.
    """
    if store is None or store == MEMORY:
        return None
    if isinstance(store, str) and store.startswith("file:"):
        raise StoreError(
            "SQLite's URIs are not supported",
            where=store,
            remedy=f"{_HOW}; a file of this name is ./{store}",
        )
    location = "" if isinstance(store, str) and not store.strip() else store
    return option_checks.path(location, "store", error=StoreError, otherwise='":memory:" or None for a store in memory')


def refuse(path: Path, *, read_only: bool) -> None:
    """Raise StoreError if there cannot be a store at this path.

    SQLite reports "unable to open database file" for all of these cases, or waits forever."""
    where = str(path)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except OSError as error:
        raise StoreError(
            f"the path cannot be accessed: {error.strerror}", where=where, remedy="check the path"
        ) from None
    for test, kind, remedy in _KINDS:
        if mode is not None and test(mode):
            raise StoreError(f"expected a file, got {kind}", where=where, remedy=remedy)
    if not path.parent.is_dir():
        raise StoreError(f"there is no directory {path.parent}", where=where, remedy="create it, or give another path")
    if mode is None and read_only:
        raise StoreError("there is no such file", where=where, remedy="check the path")
    if mode is not None and not os.access(path, os.R_OK):
        raise StoreError(UNREADABLE, where=where, remedy="check its permissions")
    if not read_only:
        _refuse_read_only(path, is_there=mode is not None)


def _refuse_read_only(path: Path, *, is_there: bool) -> None:
    """Raise StoreError unless the file can be written, and its folder too, in which SQLite creates its log."""
    folder = Path(os.path.realpath(path)).parent
    if is_there and not os.access(path, os.W_OK):
        what = "the file is not writable"
    elif not os.access(folder, os.W_OK | os.X_OK):
        what = f"the directory {folder} is not writable, and SQLite creates a log beside the file"
    else:
        return
    raise StoreError(
        f"the store is read-only: {what}",
        where=str(path),
        remedy=WRITABLE,
    )
