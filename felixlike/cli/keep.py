"""Save a tuned model, even if its output path can no longer be written.

Inputs: a tuned model, the requested path. Outputs: a file there, in the current directory or in the temporary
directory, and its path. An hour of tuning is not lost if the disk is full. A first copy is saved before the model is
compared with its original, since the comparison may run out of memory.
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
"""Upper limit on the names tried per directory. Chosen by hand."""


class FirstCopy:
    """A context manager in which `optimize` saves the model before comparing it, beside the requested path.

    The copy is called model.unverified.flx. It is removed once the model is saved. It stays if the process is killed or
    `optimize` raises.

    Args:
        path: Path of the model; None if it is not saved.
    """

    def __init__(self, path: Path | None) -> None:
        """Remember where the copy goes."""
        self._path = None if path is None else unverified(path)
        self._saved = False

    def __enter__(self) -> Self:
        from felixlike.tuning.verifying import before_comparing

        self._token = before_comparing.set(None if self._path is None else self._save)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        from felixlike.tuning.verifying import before_comparing

        before_comparing.reset(self._token)
        if error is not None and self._saved:
            complain(f"the tuned model, which was not compared with its original, is saved to {self._path}")

    def saved_again(self, tuned: Optimized, path: Path) -> bool:
        """Save the model by copying the first copy, which is then removed. Return whether that worked."""
        from felixlike import runtime

        if not self._saved or self._path is None:
            return False
        try:
            runtime.save_again(self._path, path, report=tuned.report.to_json())
        except Exception:  # the caller saves the model itself
            return False
        self.remove(unless=path)
        return True

    def remove(self, *, unless: Path) -> None:
        """Remove the copy unless it is the file at the path."""
        if self._saved and self._path is not None and self._path != unless:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _save(self, compiled: Any, report: Any) -> None:
        """Save the copy."""
        from felixlike import runtime

        assert self._path is not None
        runtime.save(compiled, self._path, report=report.to_json())
        self._saved = True


def kept(tuned: Optimized, path: Path, first: FirstCopy) -> Path:
    """Save a model and return its path. If that differs from the requested path, say so.

    Raise the error of the requested path if no other path works.
    """
    if first.saved_again(tuned, path):
        return path
    try:
        tuned.save(path)
    except Exception as error:  # from the disk or the linker
        for other in _elsewhere(path):
            try:
                tuned.save(other)
            except Exception:  # try the next path
                other.unlink(missing_ok=True)
                continue
            complain(f"{path} could not be written ({first_line(error)}); the tuned model is saved to {other}")
            return other
        raise
    first.remove(unless=path)
    return path


def unverified(path: Path) -> Path:
    """Return the path of a model that failed verification: model.unverified.flx."""
    return path.with_name(f"{path.stem}.unverified{path.suffix}")


def _elsewhere(path: Path) -> Iterator[Path]:
    """Create empty files for a model in the current and in the temporary directory, and yield their paths.

    Creating them here prevents following a link of this name that another user has put there.
    """
    for folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        names = (f"{path.stem}{'' if n == 1 else f'-{n}'}{path.suffix}" for n in range(1, _MOST_NAMES))
        with contextlib.suppress(OSError):  # the directory was removed, or is not writable
            place = folder()
            yield from islice((file for name in names if _created(file := place / name)), 1)


def _created(file: Path) -> bool:
    """Create an empty file. Return False if the name is in use, even by a dangling link."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    except FileExistsError:
        return False
    return True
