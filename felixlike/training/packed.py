"""Stores as they are shipped: packed by xz, a tenth of their size.

In: the path of a store, or of one packed as NAME.sqlite.xz. Out: the store, read only; unpacked to a temporary file.
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


@contextmanager
def opened(path: str | Path) -> Iterator[Store]:
    """The store of a path, read only.  Raises StoreError as `records.open`, also for what cannot be unpacked."""
    given = option_checks.path(path, "store", error=StoreError)
    if given.suffix != SUFFIX:
        with records.open(given, read_only=True) as store:
            yield store
        return
    with scratch.temporary("store") as folder:
        plain = folder / given.stem
        try:
            with lzma.open(given) as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (lzma.LZMAError, EOFError) as error:
            raise StoreError(
                "it cannot be unpacked: it is damaged, or no xz file", where=str(given), remedy="get it anew"
            ) from error
        with records.open(plain, read_only=True) as store:
            yield store


def pack(store: str | Path, path: str | Path) -> None:
    """Write a packed copy of a store that nobody has open."""
    with Path(store).open("rb") as source, lzma.open(path, "wb", preset=9) as target:
        shutil.copyfileobj(source, target)
