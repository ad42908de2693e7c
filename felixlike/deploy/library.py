"""A shared library in a file of its own, which lasts as long as somebody holds it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


class Library:
    """path: of the file, in a new folder below the one for temporary files.  Raises OSError where it cannot be made."""

    def __init__(self, content: bytes) -> None:
        folder = Path(tempfile.mkdtemp(prefix="felixlike-"))
        weakref.finalize(self, _remove, folder, os.getpid())
        self.path = folder / "model.so"
        self.path.write_bytes(content)


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process that ends leaves its parent's files alone
        shutil.rmtree(folder, ignore_errors=True)
