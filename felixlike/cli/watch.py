"""`felixlike watch`: a live page of a run, in the browser.

In: the path of a store, which need not exist yet. Out: a page on this machine's loopback address until Ctrl-C,
for whoever knows the token in its address.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

PORT = 8765


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "watch",
        help="a live page of what a run does, for the browser",
        description="Serve a page of STORE that renews itself while a run writes it, to browsers on this machine "
        "alone, until Ctrl-C. The address that is printed holds a token, without which nobody is answered. A store "
        "that does not exist yet is waited for.",
    )
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the page, default {PORT}; 0: any that is free")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C; 0."""
    from felixlike import records
    from felixlike._util import option_checks as checks
    from felixlike.errors import StoreError
    from felixlike.report.watching import Watch

    port = checks.whole(options.port, "port", most=65535, where="watch")
    path = records.path_of(options.store)
    if path is None:
        raise StoreError("it is in memory of another process", where=options.store, remedy="give the path of a file")
    there = _checked(path)
    watch = Watch(path, port)
    try:
        waiting = "" if there else " as soon as there is one"
        print(f"{watch.url} shows {path}{waiting}. Ctrl-C ends it.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            watch.serve()
    finally:
        watch.close()
    return 0


def _checked(path: Path) -> bool:
    """Whether there is a store, or only room for one.  Raises StoreError where none can be, or something else is."""
    from felixlike import records
    from felixlike.errors import StoreError

    if path.exists() and (not path.is_file() or path.stat().st_size):
        records.open(path, read_only=True).close()
        return True
    if not path.parent.is_dir():
        raise StoreError(f"there is no directory {path.parent}", where=str(path), remedy="make it, or check the path")
    return False
