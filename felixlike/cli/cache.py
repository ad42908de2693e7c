"""Implement `felixlike cache`: show what is cached for later processes, and remove it on request.

Input: nothing, or --clear. Output: a line per kind of entry, and for the store of `torch.compile` and its run logs; or
what was removed. The store is never removed, since it holds measurements.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from felixlike._util.wording import counted

if TYPE_CHECKING:
    from felixlike._util.cache import Entry


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike cache`."""
    parser = commands.add_parser(
        "cache",
        help="show or clear the cache",
        description="Show the cache folder of compiled code, formulas and predictions, and the store and run logs "
        "of torch.compile.",
    )
    parser.add_argument(
        "--clear", action="store_true", help="remove the cache and these run logs, but no store of measurements"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show what is cached, or remove it. Return 0."""
    from felixlike._util import cache, user_folders
    from felixlike.report.runlog import logs_of

    store = user_folders.store_path()
    logs = [] if store is None else logs_of(store)
    if options.clear:
        removed = cache.clear() + [log for log in logs if _removed(log)]
        print(f"Removed {_sized(removed)}.")
        return 0
    folder = cache.folder()
    entries = cache.entries()
    print(f"cache: {folder or 'none, since this user has no known home directory'}")
    for kind in sorted({entry.kind for entry in entries}):
        print(f"  {kind}: {_sized([entry for entry in entries if entry.kind == kind])}")
    print(f"  total: {_sized(entries)}")
    print(
        f"  Entries unused for {cache.MOST_DAYS} days are removed, and the least recently used ones beyond "
        f"{_bytes(cache.MOST_BYTES)}."
    )
    if store is not None:
        print(f"store of torch.compile: {store}: {_bytes(store.stat().st_size) if store.is_file() else 'none yet'}")
        print(f"  run logs: {_sized(logs)}")
    return 0


def _removed(log: Entry) -> bool:
    """Remove a log and return whether that worked."""
    with contextlib.suppress(OSError):
        log.path.unlink()
        return True
    return False


def _sized(files: Sequence[Entry]) -> str:
    """Return the number of files and their total size as text."""
    return f"{counted(len(files), 'file')}, {_bytes(sum(file.bytes for file in files))}"


def _bytes(count: int) -> str:
    """Return a size as text, in the largest unit of which it has at least one."""
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}" if units[0] != "bytes" else f"{count} bytes"
