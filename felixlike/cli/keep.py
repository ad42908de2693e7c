"""Save what was tuned, whatever has become of the place it was meant for.

In: a tuned model, the path that was asked for. Out: a file there, or beside where the command runs, or where temporary
files go; and where it is. An hour of tuning is not lost for a disk that is full.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from felixlike.cli.terminal import complain
from felixlike.errors import first_line

if TYPE_CHECKING:
    from felixlike.api import Optimized

_MOST_NAMES = 1000
"""Names to try in a directory. Chosen by hand."""


def kept(tuned: Optimized, path: Path) -> Path:
    """Where it was saved, which is said if it is elsewhere.  Raises what saving at the path raised if nothing works."""
    try:
        tuned.save(path)
        return path
    except Exception as error:  # of the disk, of the linker
        for other in _elsewhere(path):
            try:
                tuned.save(other)
            except Exception:  # there is another place
                other.unlink(missing_ok=True)
                continue
            complain(f"{path} could not be written ({first_line(error)}); the tuned model is saved to {other}")
            return other
        raise


def unverified(path: Path) -> Path:
    """What a model that computes something else is called: model.unverified.flx."""
    return path.with_name(f"{path.stem}.unverified{path.suffix}")


def _elsewhere(path: Path) -> Iterator[Path]:
    """New, empty files where a model may still be saved: in the current directory, in the one for temporary files.

    Each is created here, so that no link is followed that another user has put in such a place under the same name."""
    for folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        names = (f"{path.stem}{'' if n == 1 else f'-{n}'}{path.suffix}" for n in range(1, _MOST_NAMES))
        with contextlib.suppress(OSError):  # the current directory is gone, or cannot be written
            place = folder()
            yield from islice((file for name in names if _created(file := place / name)), 1)


def _created(file: Path) -> bool:
    """Create an empty file; False if there is something of this name already, a link to nothing included."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    except FileExistsError:
        return False
    return True
