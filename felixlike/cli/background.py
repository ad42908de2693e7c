"""`felixlike tune --in-background-of PID`: tune for another process, which waits for nothing.

In: the process that wants the result. Out: a block that runs at low priority, when no other process of this user tunes
in the background on this machine, and that ends with the other process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from felixlike._util import scratch, user_folders

_NICE = 10
_PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h: which signal a process gets when the thread that started it ends."""


@contextlib.contextmanager
def in_background_of(parent: int, folder: Path) -> Iterator[None]:
    """Run a block for another process, which says "go" on standard input after it was told "ready".

    folder: removed where the other process ends first."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if os.getppid() != parent and folder.parent.name.startswith(scratch.LOCKED):  # one that it made
            scratch.discard(folder)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it ended before prctl
        end(signal.SIGTERM, None)
    os.nice(_NICE)
    with _turn():
        print("ready", flush=True)
        if sys.stdin.readline() != "go\n":
            end(signal.SIGTERM, None)
        yield


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Wait for a lock that one process of this user holds on this machine; no lock where there is no cache folder."""
    folder = user_folders.cache_folder()
    if folder is None:
        yield
        return
    with user_folders.locked(folder / f"tuning-{socket.gethostname()}.lock", seconds=float("inf")):
        yield
