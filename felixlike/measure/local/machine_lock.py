"""Let one process on this machine time kernels at a time.

In: nothing. Out: a block that runs while no other process, of whichever user, is in such a block. What marks it is the
name of a Unix socket in Linux's abstract namespace: it needs no file and no permission, and ends with its process.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator

_NAME = "\0felixlike-timing"

WAIT_SECONDS = 30.0
"""After this time a block runs all the same: who holds the name may be stopped, or be another program."""

_POLL_SECONDS = 0.002

_IMPATIENT_SECONDS = 300.0
"""How long nothing is waited for after a wait was in vain, so that a budget is not spent on waiting."""

_impatient_until = 0.0


@contextlib.contextmanager
def alone_on_machine(*, seconds: float = WAIT_SECONDS) -> Iterator[bool]:
    """Wait until no other process times, run the block, and yield whether it runs alone.

    seconds: Longest wait. Where there are no abstract names, as on other systems than Linux, nothing is waited for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        yield _marked(mark, seconds)


def _marked(mark: socket.socket, seconds: float) -> bool:
    global _impatient_until
    deadline = time.monotonic() + seconds
    while True:
        try:
            mark.bind(_NAME)
            return True
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() < _impatient_until:
                return False
        if time.monotonic() >= deadline:
            _impatient_until = time.monotonic() + _IMPATIENT_SECONDS
            return False
        time.sleep(_POLL_SECONDS)
