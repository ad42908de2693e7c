"""What is kept for later runs in the user's cache folder: one file an entry, a folder a kind.

In: a kind, a key, plain data. Out: the data, or None. Anything unreadable counts as absent, and a cache may always be
deleted. What cannot be written is kept in memory for this process, and a `StorageWarning` says so. A folder or an entry
that another user could have written counts as one that cannot be used (`_util/private_files.py`). Entries that were not
used for `MOST_DAYS` are removed, and the least recently used ones beyond `MOST_BYTES`: once a day, by whichever process
writes an entry then. A file's time of modification says when its entry was last used, to a day.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from felixlike._util import private_files, user_folders

MOST_DAYS = 90
MOST_BYTES = 2**30
"""Limits of the whole cache, chosen by hand: a tuned network leaves some megabytes."""

_DAY = 86400.0
_LEFT_SECONDS = 3600.0
"""The age of a file that is still being written, or locked, when its process must have been killed."""
_LOCK, _PART = ".lock", (".part", ".partial")
_MARKER = ".trimmed"
"""A file that is as old as the latest look at the limits."""

_MOST_IN_MEMORY = 4096
_memory: dict[tuple[str, str], str] = {}
"""Entries that could not be written, as JSON."""


def folder(kind: str = "") -> Path | None:
    """Where entries of a kind live; where all do; None where the user has no home.  It need not exist."""
    root = user_folders.cache_folder()
    return None if root is None else root / kind


def load(kind: str, key: str) -> Any | None:
    """The entry, or None."""
    try:
        text = _text(kind, key)
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(kind: str, key: str) -> str | None:
    file = opened(kind, f"{key}.json")
    if file is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError), file:
            return file.read().decode()
    return _memory.get((kind, key))


def store(kind: str, key: str, data: Any) -> None:
    """Write an entry, whole or not at all; into memory where it cannot be written."""
    text = json.dumps(data)
    if not write(kind, f"{key}.json", text.encode()) and len(_memory) < _MOST_IN_MEMORY:
        _memory[kind, key] = text


def opened(kind: str, name: str) -> IO[bytes] | None:
    """Open an entry's file for reading; None if there is none that only this user can have written."""
    root = folder()
    if root is None:
        return None
    try:
        file = private_files.opened(root, kind, name)
    except OSError as error:
        if isinstance(error, private_files.NotPrivate):
            _unusable(root / kind, error)
        return None
    note_use(root / kind / name)
    return file


def write(kind: str, name: str, content: bytes) -> bool:
    """Write an entry's file, whole or not at all; return whether that was done."""
    root = folder()
    try:
        if root is None:
            raise FileNotFoundError("the user's home is not known")
        private_files.write(root, kind, name, content=content)
    except OSError as error:
        _unusable("the cache" if root is None else root / kind, error)
        return False
    trim_daily()
    return True


def writable_folder(kind: str) -> Path | None:
    """Make the folder of a kind, for this user alone; None where it cannot be used."""
    root = folder()
    try:
        if root is None:
            raise FileNotFoundError("the user's home is not known")
        private_files.make_folder(root, kind)
    except OSError as error:
        _unusable("the cache" if root is None else root / kind, error)
        return None
    return root / kind


def _unusable(place: Path | str, error: OSError) -> None:
    user_folders.unusable(error.filename if isinstance(error, private_files.NotPrivate) else place, error)


def digest(text: str) -> str:
    """A key of a text."""
    return hashlib.blake2b(text.encode(), digest_size=24).hexdigest()


def sources() -> str:
    """The same for the same version of felixlike's code, also between releases."""
    root = Path(__file__).parents[1]
    found = hashlib.blake2b(digest_size=24)
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()


# -- limits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the cache.  bytes: its size.  used: when it was last used, seconds since 1970."""

    path: Path
    bytes: int
    used: float

    @property
    def kind(self) -> str:
        """The folder of its kind."""
        return self.path.parent.name

    @property
    def is_part(self) -> bool:
        """Whether it is a lock, or being written, rather than an entry."""
        return self.path.suffix in (_LOCK, *_PART)

    @staticmethod
    def of(found: os.DirEntry[str]) -> Entry | None:
        """What a folder holds, if it is a file."""
        if not found.is_file(follow_symlinks=False):
            return None
        told = found.stat(follow_symlinks=False)
        return Entry(Path(found.path), told.st_size, told.st_mtime)


def entries() -> list[Entry]:
    """Return everything in the cache that is complete."""
    return [entry for entry in _files() if not entry.is_part]


def note_use(path: Path) -> None:
    """Note that an entry was used, if the latest note is older than a day."""
    with contextlib.suppress(OSError):
        if abs(time.time() - path.stat().st_mtime) > _DAY:
            os.utime(path)


def trim_daily() -> None:
    """Remove what is beyond the limits, unless a process has done so within the last day."""
    root = folder()
    if root is None:
        return
    marker = root / _MARKER
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            if abs(time.time() - marker.stat().st_mtime) < _DAY:
                return
        marker.touch()  # first, so that other processes leave it to this one
        trim()


def trim() -> list[Entry]:
    """Remove entries beyond the limits, and what killed processes left; return what was removed."""
    found, left = list(_files()), time.time() - _LEFT_SECONDS
    outdated = [entry for entry in found if entry.is_part and entry.used < left]
    outdated += beyond([entry for entry in found if not entry.is_part], most_bytes=MOST_BYTES, most_days=MOST_DAYS)
    return [entry for entry in outdated if _removed(entry.path)]


def beyond(entries: Iterable[Entry], *, most_bytes: int, most_days: float) -> list[Entry]:
    """Return the files that were not used for so many days, and the least recently used ones beyond so many bytes."""
    oldest, size, found = time.time() - most_days * _DAY, 0, []
    for entry in sorted(entries, key=lambda entry: -entry.used):
        size += entry.bytes
        if entry.used < oldest or size > most_bytes:
            found.append(entry)
    return found


def clear() -> list[Entry]:
    """Remove everything but the locks that processes hold; return what was removed."""
    removed = [entry for entry in list(_files()) if _removed(entry.path)]
    _memory.clear()
    return removed


def _files() -> Iterator[Entry]:
    """Yield every file of the cache.  Other processes may remove some meanwhile."""
    root = folder()
    if root is None:
        return
    with contextlib.suppress(OSError):
        for place in [place for place in root.iterdir() if place.is_dir() and not place.is_symlink()]:
            yield from files(place)


def files(place: Path) -> Iterator[Entry]:
    """Yield the files of a folder, of which other processes may remove some meanwhile."""
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for each in found:
            with contextlib.suppress(OSError):
                entry = Entry.of(each)
                if entry is not None:
                    yield entry


def _removed(path: Path) -> bool:
    """Remove a file, unless it is a lock that a process holds; return whether that was done."""
    if path.suffix == _LOCK:
        with user_folders.locked(path, seconds=0.0) as held:  # which removes it
            return held
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False
