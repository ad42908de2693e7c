"""Implement `felixlike tune --in-background-of PID`: tune in the background of another process.

Input: the process that uses the result. Output: a block that runs at low priority, while no other process of this user
tunes in the background on this machine. It ends with the other process.
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
"""Increment of the nice value. Chosen by hand."""
_PR_SET_PDEATHSIG = 1
"""Option of prctl (Linux, prctl.h) that sets the signal a process gets when the thread that started it ends."""


@contextlib.contextmanager
def in_background_of(parent: int, folder: Path) -> Iterator[None]:
    """Run a block in the background of another process.

    This process prints "ready" and waits until the other process writes "go" to its standard input.

    parent: id of the other process. folder: temporary folder, removed if the other process ends first.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if os.getppid() != parent and folder.parent.name.startswith(scratch.LOCKED):  # the other process created it
            scratch.discard(folder)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it ended before the call of prctl
        end(signal.SIGTERM, None)
    os.nice(_NICE)
    with _machine_lock():
        print("ready", flush=True)
        if sys.stdin.readline() != "go\n":
            end(signal.SIGTERM, None)
        yield


@contextlib.contextmanager
def _machine_lock() -> Iterator[None]:
    """Wait for a lock that one process of this user holds at a time on this machine, and hold it.

    Without a cache folder, nothing is locked.
    """
    folder = user_folders.cache_folder()
    if folder is None:
        yield
        return
    with user_folders.locked(folder / f"tuning-{socket.gethostname()}.lock", seconds=float("inf")):
        yield
