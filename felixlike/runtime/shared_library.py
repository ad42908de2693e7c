"""Keep a shared library in a temporary file that is deleted with its last reference."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from felixlike._util import scratch
from felixlike.errors import OutputNotWritable


class Library:
    """A temporary file with a shared library.

    Args:
        content: The bytes of the library.

    Attributes:
        path: The file, in a new folder below the one for temporary files.

    Raises:
        OutputNotWritable: The file cannot be written.
    """

    def __init__(self, content: bytes) -> None:
        folder = scratch.folder("model")
        weakref.finalize(self, _remove, folder, os.getpid())
        self.path = folder / "model.so"
        try:
            self.path.write_bytes(content)
        except OSError as error:
            raise OutputNotWritable(
                f"compiled code cannot be written to a temporary file: {error.strerror}",
                where=str(folder),
                remedy="free disk space, or set TMPDIR to a folder with more",
            ) from error


def _remove(folder: Path, process: int) -> None:
    """Delete a folder that this process has created."""
    if os.getpid() == process:  # a forked process must not delete its parent's files
        scratch.discard(folder)
