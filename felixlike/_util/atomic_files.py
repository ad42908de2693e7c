"""A file written whole or not at all.

In: the path a user gave, bytes. Out: the file, complete and on the disk, or what was there before and an
OutputNotWritable. What is written goes into a file beside it, which takes its place at the end; a symbolic link stays,
and its target is replaced, as editors do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from felixlike._util import option_checks
from felixlike.errors import OutputNotWritable

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Raise OutputNotWritable unless a file can be written there; meant for before long work.

    Returns the path of the file itself: what a symbolic link leads to, whether it is there or not."""
    found = option_checks.path(path, "output", error=OutputNotWritable)
    given = str(found)
    try:
        target = Path(os.path.realpath(found, strict=False))
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    except NotADirectoryError:
        raise OutputNotWritable(f"there is no directory {target.parent}", where=given, remedy="make it first") from None
    except OSError as error:
        raise _explained(error, given) from None
    if mode is not None and not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "no file")
        raise OutputNotWritable(f"it is {kind}", where=given, remedy="give the path of a file")
    folder = target.parent
    if not folder.is_dir():
        raise OutputNotWritable(f"there is no directory {folder}", where=given, remedy="make it first")
    if mode is not None and not os.access(target, os.W_OK):
        raise OutputNotWritable("permission is denied", where=given, remedy="choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputNotWritable(
            f"permission is denied: a file beside it is needed, and {folder} cannot be written",
            where=given,
            remedy="choose another place",
        )
    return target


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes the file at the path when the block ends without an exception.

    An existing file keeps its permissions (and owner, where that is allowed); a new one gets those that the umask
    leaves. Raises OutputNotWritable, also for a full disk; nothing is left behind then."""
    target = check_writable(path)
    partial = target.with_name(f".felixlike-{secrets.token_hex(8)}.partial")  # a name of its own: no longer than usual
    try:
        try:
            # Made with the permissions of a new file, so that the umask and what else there is have their say.
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                yield file
                file.flush()
                _permit(file.fileno(), target)
                os.fsync(file.fileno())
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OutputNotWritable:
        raise
    except OSError as error:
        raise _explained(error, str(path)) from None
    _sync_folder(target.parent)


def _permit(number: int, target: Path) -> None:
    """Give an open file the permissions of the one it is to replace, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        there, own = target.stat(), os.fstat(number)
        if (own.st_uid, own.st_gid) != (there.st_uid, there.st_gid):
            with contextlib.suppress(OSError):
                os.fchown(number, there.st_uid, there.st_gid)
        os.fchmod(number, stat.S_IMODE(there.st_mode))


def _sync_folder(folder: Path) -> None:
    """So that a power cut does not undo the rename.  Some file systems cannot."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _explained(error: OSError, where: str) -> OutputNotWritable:
    if error.errno in _NO_ROOM:
        return OutputNotWritable(
            f"there is no room for it ({error.strerror})", where=where, remedy="make room, or choose another place"
        )
    return OutputNotWritable(f"writing failed: {error.strerror or error}", where=where, remedy="choose another place")
