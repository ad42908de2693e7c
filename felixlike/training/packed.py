"""Pack stores for distribution with xz, to a tenth of their size, and open packed stores.

The input is the path of a store, or of a packed one, NAME.sqlite.xz. The output is the read-only store; a packed one is
unpacked to a temporary file.
"""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from felixlike import records
from felixlike._util import option_checks, scratch
from felixlike.errors import StoreError
from felixlike.records import Store

SUFFIX = ".xz"
"""File name suffix of packed stores."""


@contextmanager
def opened(path: str | Path) -> Iterator[Store]:
    """Open a store or a packed store, read-only, as a context manager.

    Raises:
        StoreError: The file cannot be unpacked, or one of the reasons of `records.open`.
    """
    source_path = option_checks.path(path, "store", error=StoreError)
    if source_path.suffix != SUFFIX:
        with records.open(source_path, read_only=True) as store:
            yield store
        return
    with scratch.temporary("store") as folder:
        plain = folder / source_path.stem
        try:
            with lzma.open(source_path) as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (lzma.LZMAError, EOFError) as error:
            raise StoreError(
                "the file is damaged or not an xz file", where=str(source_path), remedy="copy or download it again"
            ) from error
        except OSError as error:
            raise StoreError(
                f"the file cannot be unpacked: {error.strerror or error}",
                where=str(source_path),
                remedy="check the path, and that TMPDIR has space",
            ) from error
        with records.open(plain, read_only=True) as store:
            yield store


def pack(store: str | Path, path: str | Path) -> None:
    """Write a packed copy of a store that no process has open."""
    with Path(store).open("rb") as source, lzma.open(path, "wb", preset=9) as target:
        shutil.copyfileobj(source, target)
