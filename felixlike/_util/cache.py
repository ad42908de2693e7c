"""Store data for later runs in the user's cache folder: one file per entry, one folder per kind.

Input: a kind, a key, plain data. Output: the data, or None. Unreadable entries count as absent, and the cache may
be deleted at any time. Data that cannot be written is kept in memory for this process, with a `StorageWarning`.
Folders and entries that another user could have written are not used (`_util/private_files.py`). Entries that were
not used for `MOST_DAYS` are removed, and those for which `MOST_BYTES` has no space beside more recently used ones. The
first process that writes an entry on a day does this, and each that writes a large one. A file's modification time is
the time of its last use, to a day.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from felixlike._util import private_files, user_folders

MOST_DAYS = 90
"""Days after which unused entries are removed, chosen by hand."""
MOST_BYTES = 2**32
"""Upper limit of the cache's size in bytes, chosen by hand. A tuned network takes some megabytes and its weights."""
LARGE_BYTES = 2**24
"""Size in bytes of a large entry, after which the limits are checked at once. Chosen by hand."""
_DISK_SHARE = 0.25
"""Largest share of the disk's free space that one entry takes. Chosen by hand."""

_DAY = 86400.0
"""Seconds of a day."""
_LEFT_SECONDS = 3600.0
"""Age in seconds after which a partial or lock file is taken as left by a killed process."""
_LOCK, _PART = ".lock", (".part", ".partial")
_MARKER = ".trimmed"
"""File whose modification time is that of the latest check of the limits."""

_MOST_IN_MEMORY = 4096
"""Upper limit of the entries in memory."""
_memory: dict[tuple[str, str], str] = {}
"""Entries that could not be written, as JSON, by (kind, key)."""


def folder(kind: str = "") -> Path | None:
    """Return the folder of a kind, or of all kinds, or None if the user has no home. It need not exist."""
    root = user_folders.cache_folder()
    return None if root is None else root / kind


def load(kind: str, key: str) -> Any | None:
    """Return the data of an entry, or None."""
    try:
        text = _text(kind, key)
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(kind: str, key: str) -> str | None:
    """Return the JSON text of an entry, or None."""
    file = opened(kind, f"{key}.json")
    if file is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError), file:
            return file.read().decode()
    return _memory.get((kind, key))


def store(kind: str, key: str, data: Any) -> None:
    """Write an entry whole or not at all, or keep it in memory if it cannot be written."""
    text = json.dumps(data)
    if not write(kind, f"{key}.json", text.encode()) and len(_memory) < _MOST_IN_MEMORY:
        _memory[kind, key] = text


def opened(kind: str, name: str) -> IO[bytes] | None:
    """Open an entry's file for reading. Returns None unless only this user can have written it."""
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


def write(kind: str, name: str, content: bytes | Callable[[IO[bytes]], object]) -> bool:
    """Write an entry's file whole or not at all, and return whether it was written.

    content: The bytes, or a function that writes them to the open file.
    """
    root = folder()
    try:
        if root is None:
            raise FileNotFoundError("the home directory is unknown")
        private_files.write(root, kind, name, content=content)
    except OSError as error:
        _unusable("the cache" if root is None else root / kind, error)
        return False
    is_large = False
    with contextlib.suppress(OSError):  # another process has removed it
        is_large = (root / kind / name).stat().st_size >= LARGE_BYTES
    trim_daily(at_once=is_large)
    return True


def most_entry_bytes(kind: str) -> int:
    """Return the upper limit of an entry's size in bytes: half of the cache, at most a quarter of the free disk."""
    place = writable_folder(kind)
    with contextlib.suppress(OSError):
        return 0 if place is None else min(MOST_BYTES // 2, int(_DISK_SHARE * shutil.disk_usage(place).free))
    return 0


def writable_folder(kind: str) -> Path | None:
    """Make the folder of a kind with access for this user only. Returns None if it cannot be used."""
    root = folder()
    try:
        if root is None:
            raise FileNotFoundError("the home directory is unknown")
        private_files.make_folder(root, kind)
    except OSError as error:
        _unusable("the cache" if root is None else root / kind, error)
        return None
    return root / kind


def _unusable(place: Path | str, error: OSError) -> None:
    """Warn once that a place of the cache cannot be used."""
    user_folders.unusable(error.filename if isinstance(error, private_files.NotPrivate) else place, error)


def digest(text: str) -> str:
    """Return the key of a text: 48 hexadecimal digits of its BLAKE2b hash."""
    return hashlib.blake2b(text.encode(), digest_size=24).hexdigest()


def sources() -> str:
    """Return a hash of felixlike's source code, which distinguishes versions between releases too."""
    root = Path(__file__).parents[1]
    code_hash = hashlib.blake2b(digest_size=24)
    for path in sorted(root.rglob("*.py")):
        code_hash.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return code_hash.hexdigest()


# -- limits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """Describe a file in the cache.

    Attributes:
        path: Path of the file.
        bytes: Size in bytes.
        used: Time of the last use, in seconds since 1970.
    """

    path: Path
    bytes: int
    used: float

    @property
    def kind(self) -> str:
        """Name of the folder of its kind."""
        return self.path.parent.name

    @property
    def is_part(self) -> bool:
        """Whether it is a lock or a partial file instead of an entry."""
        return self.path.suffix in (_LOCK, *_PART)

    @staticmethod
    def of(found: os.DirEntry[str]) -> Entry | None:
        """Return the entry of a directory entry, or None if it is not a file."""
        if not found.is_file(follow_symlinks=False):
            return None
        status = found.stat(follow_symlinks=False)
        return Entry(Path(found.path), status.st_size, status.st_mtime)


def entries() -> list[Entry]:
    """Return all complete entries of the cache."""
    return [entry for entry in _files() if not entry.is_part]


def note_use(path: Path) -> None:
    """Update the time of an entry's last use if it is more than a day old."""
    with contextlib.suppress(OSError):
        if abs(time.time() - path.stat().st_mtime) > _DAY:
            os.utime(path)


def trim_daily(*, at_once: bool = False) -> None:
    """Remove entries beyond the limits, unless a process has done so within the last day; at once if asked to."""
    root = folder()
    if root is None:
        return
    marker = root / _MARKER
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            if not at_once and abs(time.time() - marker.stat().st_mtime) < _DAY:
                return
        marker.touch()  # before trimming, so that other processes skip it
        trim()


def trim() -> list[Entry]:
    """Remove entries beyond the limits and files of killed processes, and return the removed ones."""
    everything, left = list(_files()), time.time() - _LEFT_SECONDS
    outdated = [entry for entry in everything if entry.is_part and entry.used < left]
    outdated += beyond([entry for entry in everything if not entry.is_part], most_bytes=MOST_BYTES, most_days=MOST_DAYS)
    return [entry for entry in outdated if _removed(entry.path)]


def beyond(entries: Iterable[Entry], *, most_bytes: int, most_days: float) -> list[Entry]:
    """Return the entries unused for `most_days`, and those for which there is no space beside more recently used ones.

    A large entry that is removed leaves its space to small ones that were used before it.
    """
    oldest, size, outdated = time.time() - most_days * _DAY, 0, []
    for entry in sorted(entries, key=lambda entry: -entry.used):
        if entry.used < oldest or size + entry.bytes > most_bytes:
            outdated.append(entry)
        else:
            size += entry.bytes
    return outdated


def clear() -> list[Entry]:
    """Remove everything except locks that processes hold, and return the removed files."""
    removed = [entry for entry in list(_files()) if _removed(entry.path)]
    _memory.clear()
    return removed


def _files() -> Iterator[Entry]:
    """Yield every file of the cache. Other processes may remove files meanwhile."""
    root = folder()
    if root is None:
        return
    with contextlib.suppress(OSError):
        for place in [place for place in root.iterdir() if place.is_dir() and not place.is_symlink()]:
            yield from files(place)


def files(place: Path) -> Iterator[Entry]:
    """Yield the files of a folder. Other processes may remove files meanwhile."""
    with contextlib.suppress(OSError), os.scandir(place) as directory:
        for item in directory:
            with contextlib.suppress(OSError):
                entry = Entry.of(item)
                if entry is not None:
                    yield entry


def _removed(path: Path) -> bool:
    """Remove a file, unless it is a lock that a process holds, and return whether it was removed."""
    if path.suffix == _LOCK:
        with user_folders.locked(path, seconds=0.0) as held:  # which removes it
            return held
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False
