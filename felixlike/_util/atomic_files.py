"""Write a file whole or not at all.

Input: a path of the user's, and bytes. Output: the complete file, synced to disk, or the previous file and an
OutputNotWritable. The data goes into a temporary file beside it, which replaces it at the end. A symbolic link
stays, and its target is replaced, as editors do.
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
"""Error codes of a full disk, an exceeded quota and a file that is too large."""


def check_writable(path: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> Path:
    """Check that a file can be written, before long work.

    Args:
        path: Path of the file, which need not exist.
        inputs: Paths of files that it must not replace. They need not exist.

    Returns:
        The path of the file itself, with symbolic links resolved.

    Raises:
        OutputNotWritable: The file cannot be written, or it is one of the inputs.
    """
    checked = option_checks.path(path, "output", error=OutputNotWritable)
    where = str(checked)
    try:
        target = Path(os.path.realpath(checked, strict=False))
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    except NotADirectoryError:
        raise OutputNotWritable(
            f"there is no directory {target.parent}", where=where, remedy="create it first"
        ) from None
    except OSError as error:
        raise _explained(error, where) from None
    if mode is not None and not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "a special file")
        raise OutputNotWritable(f"expected a file, got {kind}", where=where, remedy="give the path of a file")
    folder = target.parent
    if not folder.is_dir():
        raise OutputNotWritable(f"there is no directory {folder}", where=where, remedy="create it first")
    if mode is not None and not os.access(target, os.W_OK):
        raise OutputNotWritable("the file is not writable", where=where, remedy="choose another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputNotWritable(
            f"the directory {folder} is not writable, and a temporary file beside the output is needed",
            where=where,
            remedy="choose another path",
        )
    for other in inputs:
        real = Path(os.path.realpath(os.path.expanduser(other)))
        if real == target or (mode is not None and real.exists() and real.samefile(target)):
            raise OutputNotWritable(f"it would overwrite {other}", where=where, remedy="give it another name")
    return target


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces the file at the path when the block ends without an exception.

    An existing file keeps its permissions (and owner, where allowed). A new one gets permissions according to the
    umask.

    Args:
        path: Path of the file, which need not exist.

    Yields:
        The file to write to.

    Raises:
        OutputNotWritable: The file cannot be written, also for a full disk. Nothing is left behind.
    """
    target = check_writable(path)
    partial = target.with_name(f".felixlike-{secrets.token_hex(8)}.partial")  # of fixed length, so never too long
    try:
        try:
            # Created with the default permissions of a new file, so that umask and ACLs apply.
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
    """Copy the permissions and owner of the file that is replaced, if it exists, to an open file."""
    with contextlib.suppress(FileNotFoundError):
        existing, new = target.stat(), os.fstat(number)
        if (new.st_uid, new.st_gid) != (existing.st_uid, existing.st_gid):
            with contextlib.suppress(OSError):
                os.fchown(number, existing.st_uid, existing.st_gid)
        os.fchmod(number, stat.S_IMODE(existing.st_mode))


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a power failure does not undo the rename. Some file systems do not support this."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _explained(error: OSError, where: str) -> OutputNotWritable:
    """Return the error for a failed system call."""
    if error.errno in _NO_ROOM:
        return OutputNotWritable(
            f"the file does not fit on the disk ({error.strerror})",
            where=where,
            remedy="free some space, or choose another path",
        )
    return OutputNotWritable(f"writing failed: {error.strerror or error}", where=where, remedy="choose another path")
