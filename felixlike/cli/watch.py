"""Implement `felixlike watch`: serve a live page of a run to the browser.

Input: the path of a store, which need not exist yet. Output: a page on the loopback address until Ctrl-C, for everyone
who knows the token in its address.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

PORT = 8765
"""Default port of the page. Chosen by hand."""


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike watch`."""
    parser = commands.add_parser(
        "watch",
        help="serve a live page of a run",
        description="Serve a page of STORE to browsers on this machine until Ctrl-C. The page updates while a run "
        "writes to STORE, which need not exist yet. The printed address contains a token that grants access.",
    )
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the page, default {PORT}; 0: any free port")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Return 0."""
    from felixlike import records
    from felixlike._util import option_checks as checks
    from felixlike.errors import StoreError
    from felixlike.report.watching import Watch

    port = checks.whole(options.port, "port", most=65535, where="watch")
    path = records.path_of(options.store)
    if path is None:
        raise StoreError("a store in memory cannot be watched", where=options.store, remedy="give the path of a file")
    exists = _checked(path)
    watch = Watch(path, port)
    try:
        waiting = "" if exists else " once it exists"
        print(f"{watch.url} shows {path}{waiting}. Press Ctrl-C to stop.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            watch.serve()
    finally:
        watch.close()
    return 0


def _checked(path: Path) -> bool:
    """Return whether the store exists. Raise StoreError if none can be created there, or the file is not a store."""
    from felixlike import records
    from felixlike.errors import StoreError

    if path.exists() and (not path.is_file() or path.stat().st_size):
        records.open(path, read_only=True).close()
        return True
    if not path.parent.is_dir():
        raise StoreError(f"there is no directory {path.parent}", where=str(path), remedy="create it, or check the path")
    return False
