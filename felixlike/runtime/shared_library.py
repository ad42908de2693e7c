"""Keep a shared library, and the files to link it again, in a temporary folder deleted with the last reference."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from felixlike._util import scratch
from felixlike.errors import OutputNotWritable


class Library:
    """Temporary files with a shared library.

    Args:
        contents: The bytes of the files by name.
        description: See the attribute.

    Attributes:
        description: The description embedded in the code, as JSON. It has the checksums of the constants.
        files: The files by name, in a new folder below the one for temporary files.

    Raises:
        OutputNotWritable: The files cannot be written.
    """

    def __init__(self, contents: Mapping[str, bytes], description: str = "") -> None:
        self.description = description
        folder = scratch.folder("model")
        weakref.finalize(self, _remove, folder, os.getpid())
        self.files = {name: folder / name for name in contents}
        try:
            for name, path in self.files.items():
                path.write_bytes(contents[name])
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
