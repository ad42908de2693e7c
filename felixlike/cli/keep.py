"""Save what was tuned, whatever has become of the place it was meant for.

In: a tuned model, the path that was asked for. Out: a file there, or beside where the command runs, or where temporary
files go; and where it is. An hour of tuning is not lost for a disk that is full, nor when comparing the model with its
original takes more memory than there is: a first copy is saved before that.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from felixlike.cli.terminal import complain
from felixlike.errors import first_line

if TYPE_CHECKING:
    from felixlike.api import Optimized

_MOST_NAMES = 1000
"""Names to try in a directory. Chosen by hand."""


class FirstCopy:
    """A context manager in which `optimize` saves the model before comparing it, beside where it is to be saved.

    The copy is called model.unverified.flx. It is removed once the model is saved, and stays where the process is
    killed, or `optimize` raises."""

    def __init__(self, path: Path | None) -> None:
        """path: where the model is to be saved; None for nowhere."""
        self._path = None if path is None else unverified(path)
        self._saved = False

    def __enter__(self) -> Self:
        from felixlike.tuning.finish import before_comparing

        self._token = before_comparing.set(None if self._path is None else self._save)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        from felixlike.tuning.finish import before_comparing

        before_comparing.reset(self._token)
        if error is not None and self._saved:
            complain(f"the tuned model, which was not compared with its original, is saved to {self._path}")

    def saved_again(self, tuned: Optimized, path: Path) -> bool:
        """Save the model for good by copying the first copy, which then goes.  Whether that worked."""
        from felixlike import runtime

        if not self._saved or self._path is None:
            return False
        try:
            runtime.save_again(self._path, path, report=tuned.report.to_json())
        except Exception:  # it is saved anew
            return False
        self.remove(unless=path)
        return True

    def remove(self, *, unless: Path) -> None:
        """Remove the copy, if it is not the file at the path."""
        if self._saved and self._path is not None and self._path != unless:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _save(self, compiled: Any, report: Any) -> None:
        from felixlike import runtime

        assert self._path is not None
        runtime.save(compiled, self._path, report=report.to_json())
        self._saved = True


def kept(tuned: Optimized, path: Path, first: FirstCopy) -> Path:
    """Where it was saved, which is said if it is elsewhere.  Raises what saving at the path raised if nothing works."""
    if first.saved_again(tuned, path):
        return path
    try:
        tuned.save(path)
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
    first.remove(unless=path)
    return path


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
