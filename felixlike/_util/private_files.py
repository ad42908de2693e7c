"""Read and write files of this user that no other user can have written.

Input: a folder, and the name of a file in it or below. Output: an open file, or a new one. New folders get mode
0700 and new files mode 0600. Owner and mode are read from the descriptors that are then used, and links below the
folder are not followed, so nothing can change between the check and the use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: opening a named pipe must not wait for a writer


class NotPrivate(PermissionError):
    """A file or a folder belongs to another user, or other users may write to it."""


def opened(root: Path, *parts: str) -> IO[bytes]:
    """Open the file `root/parts…` for reading.

    Raises:
        NotPrivate: The file, `root` or a folder between them is not private.
        OSError: It cannot be opened.
    """
    with _folder(root, parts[:-1], make=False) as folder:
        number = os.open(parts[-1], os.O_RDONLY | _FILE, dir_fd=folder)
        return os.fdopen(_checked(number, root.joinpath(*parts)), "rb")


def write(root: Path, *parts: str, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write the file `root/parts…` whole or not at all, and replace an existing one. Raises like `opened`.

    content: The bytes, or a function that writes them to the open file.
    """
    with _folder(root, parts[:-1], make=True) as folder:
        partial = f"{secrets.token_hex(8)}.part"
        number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=folder)
        try:
            with os.fdopen(number, "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
            os.replace(partial, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(partial, dir_fd=folder)
            raise


def make_folder(root: Path, *parts: str) -> None:
    """Make the folder `root/parts…` and missing folders between. Raises like `opened`."""
    with _folder(root, parts, make=True):
        pass


@contextlib.contextmanager
def _folder(root: Path, parts: tuple[str, ...], *, make: bool) -> Iterator[int]:
    """Yield the descriptor of the folder `root/parts…`.

    Every folder from `root` on is checked.  make: create missing ones.

    A folder that others may write to is not repaired, because they may have exchanged its contents.
    """
    if make:
        root.parent.mkdir(parents=True, exist_ok=True)
        _make(str(root), None)
    number = os.open(root, _FOLDER)
    try:
        _check(os.fstat(number), root)
        for place, part in enumerate(parts):
            if make:
                _make(part, number)
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=number)
            os.close(number)
            number = inner
            _check(os.fstat(number), root.joinpath(*parts[: place + 1]))
        yield number
    finally:
        os.close(number)


def _make(name: str, folder: int | None) -> None:
    """Make a folder with access for this user only, if it does not exist."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)


def _checked(number: int, path: Path) -> int:
    """Return the descriptor of a private regular file. Otherwise close it and raise NotPrivate."""
    try:
        status = os.fstat(number)
        _check(status, path)
        if not stat.S_ISREG(status.st_mode):
            raise _not_private("it is not a regular file", path)
    except BaseException:
        os.close(number)
        raise
    return number


def _check(status: os.stat_result, path: Path) -> None:
    """Raise NotPrivate unless a file belongs to this user and only this user may write to it."""
    if status.st_uid != os.geteuid():
        raise _not_private(f"it belongs to another user (uid {status.st_uid})", path)
    if status.st_mode & _OTHERS_WRITE:
        raise _not_private(f"other users may write to it (mode {stat.S_IMODE(status.st_mode):o})", path)


def _not_private(what: str, path: Path) -> NotPrivate:
    """Return the error for a file that other users may have written."""
    return NotPrivate(errno.EPERM, what, str(path))
