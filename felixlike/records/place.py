"""Where a store is: what a user may write for it, as a path or as memory.

In: None, ":memory:" or a path. Out: a path, or None for a store in memory; a StoreError for what SQLite would take for
something else than is meant.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from felixlike._util import option_checks
from felixlike.errors import StoreError

MEMORY = ":memory:"
"""SQLite's name for a store in memory; it is gone when it is closed."""

_HOW = 'give the path of a file, or ":memory:" or None for a store in memory'
_KINDS = (
    (stat.S_ISDIR, "a directory", "give the name of a file in it"),
    (stat.S_ISFIFO, "a named pipe", "give the path of a file"),
    (stat.S_ISSOCK, "a socket", "give the path of a file"),
    (stat.S_ISCHR, "a device", "give the path of a file"),
    (stat.S_ISBLK, "a device", "give the path of a file"),
)


def path_of(store: str | os.PathLike[str] | None) -> Path | None:
    """The path of a store; None for one in memory.  Raises StoreError for what is no path, an empty one, and SQLite's
    URIs, which would be files of that name."""
    if store is None or store == MEMORY:
        return None
    if isinstance(store, str) and store.startswith("file:"):
        raise StoreError(
            "SQLite's URIs are not understood",
            where=store,
            remedy=f"{_HOW}; a file of this name is ./{store}",
        )
    given = "" if isinstance(store, str) and not store.strip() else store
    return option_checks.path(given, "store", error=StoreError, otherwise='":memory:" or None for a store in memory')


def refuse(path: Path, *, read_only: bool) -> None:
    """Raise StoreError where no store can be; SQLite says "unable to open database file" for all of these, or waits
    forever."""
    where = str(path)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except OSError as error:
        raise StoreError(f"it cannot be reached: {error.strerror}", where=where, remedy="check the path") from None
    for test, kind, remedy in _KINDS:
        if mode is not None and test(mode):
            raise StoreError(f"it is {kind}", where=where, remedy=remedy)
    if not path.parent.is_dir():
        raise StoreError(f"there is no directory {path.parent}", where=where, remedy="make it, or give another path")
    if mode is None and read_only:
        raise StoreError("there is no such file", where=where, remedy="check the path")
    if mode is not None and not os.access(path, os.R_OK):
        raise StoreError("permission to read it is denied", where=where, remedy="see who may read it")
    if not read_only:
        _refuse_read_only(path, is_there=mode is not None)


def _refuse_read_only(path: Path, *, is_there: bool) -> None:
    """A store that is used is written to, and so is its folder, which gets SQLite's log."""
    folder = Path(os.path.realpath(path)).parent
    if is_there and not os.access(path, os.W_OK):
        what = "the file cannot be written"
    elif not os.access(folder, os.W_OK | os.X_OK):
        what = f"the directory {folder} cannot be written, and SQLite keeps a log beside the file"
    else:
        return
    raise StoreError(
        f"it is read-only: {what}",
        where=str(path),
        remedy="see that file and directory can be written, or copy the store to where they can",
    )
