"""A shared library in a file of its own, which lasts as long as somebody holds it."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from felixlike._util import scratch
from felixlike.errors import OutputNotWritable


class Library:
    """path: of the file, in a new folder below the one for temporary files.  Raises OutputNotWritable."""

    def __init__(self, content: bytes) -> None:
        folder = scratch.folder("model")
        weakref.finalize(self, _remove, folder, os.getpid())
        self.path = folder / "model.so"
        try:
            self.path.write_bytes(content)
        except OSError as error:
            raise OutputNotWritable(
                f"compiled code could not be written to be loaded: {error.strerror}",
                where=str(folder),
                remedy="make room there, or set TMPDIR to a folder with more",
            ) from error


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process that ends leaves its parent's files alone
        scratch.discard(folder)
