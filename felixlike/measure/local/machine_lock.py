"""Lock the machine, so that one process at a time times kernels.

The lock is a context manager that excludes other processes of all users. It is the name of a Unix socket in Linux's
abstract namespace, which needs neither a file nor a permission and is released when its process ends.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

NAME = "\0felixlike-timing"
"""Name of the socket; the zero byte puts it into the abstract namespace."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How the lock is waited for, s. All values are chosen by hand.

    Attributes:
        longest: Longest wait for the lock. The block runs afterwards, since the holder of the name may be stopped, or
            be another program.
        interval: Interval between attempts.
        impatient: Time without waiting after a wait that timed out, so that a budget is not spent on waiting.
    """

    longest: float = 30.0
    interval: float = 0.002
    impatient: float = 300.0


_WAITING = Waiting()

_impatient_until = 0.0


@contextlib.contextmanager
def alone_on_machine(*, seconds: float = _WAITING.longest) -> Iterator[bool]:
    """Wait until no other process times, run the block, and yield whether it holds the lock.

    `seconds` is the longest wait. Systems other than Linux have no abstract names, so the block runs at once there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        yield _marked(mark, seconds)


def _marked(mark: socket.socket, seconds: float) -> bool:
    """Bind the socket to the lock's name; return False after `seconds` or if the name cannot be bound."""
    global _impatient_until
    deadline = time.monotonic() + seconds
    while True:
        try:
            mark.bind(NAME)
            return True
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() < _impatient_until:
                return False
        if time.monotonic() >= deadline:
            _impatient_until = time.monotonic() + _WAITING.impatient
            return False
        time.sleep(_WAITING.interval)
