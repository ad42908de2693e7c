"""Save what was tuned, whatever has become of the place it was meant for.

In: a tuned model, the path that was asked for. Out: a file there, or beside where the command runs, or where temporary
files go; and where it is. An hour of tuning is not lost for a disk that is full.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from felixlike.cli.terminal import complain
from felixlike.errors import first_line

if TYPE_CHECKING:
    from felixlike.api import Optimized


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
                continue
            complain(f"{path} could not be written ({first_line(error)}); the tuned model is saved to {other}")
            return other
        raise


def unverified(path: Path) -> Path:
    """What a model that computes something else is called: model.unverified.flx."""
    return path.with_name(f"{path.stem}.unverified{path.suffix}")


def _elsewhere(path: Path) -> Iterator[Path]:
    """New files where a model may still be saved."""
    for folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        try:
            place = folder()
        except OSError:  # the current directory is gone
            continue
        names = (f"{path.stem}{'' if n == 1 else f'-{n}'}{path.suffix}" for n in count(1))
        yield next(file for name in names if not (file := place / name).exists())
