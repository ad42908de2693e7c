"""Keep a candidate's process harmless: it dies with its server, is silent, leaves no core file, and has a memory limit.
Where a container or the machine runs out of memory, Linux ends it before the user's process.

Linux does all of it; elsewhere the parts that do not exist are left out.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_FIRST_VICTIM = "1000"
"""The highest value of oom_score_adj (proc(5)): such processes are ended before all others."""
_C = ctypes.CDLL(None)


def confine(parent: int) -> None:
    """Called first in a new process.  parent: process id of the server that made it."""
    if sys.platform == "linux":
        _C.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # died before prctl
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM)
    # TVM's handlers print a traceback from inside the signal, which can hang; the plain death is what is wanted.
    for deadly in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTERM):
        signal.signal(deadly, signal.SIG_DFL)
    silence()


def silence() -> None:
    """Connect stdin, stdout and stderr to nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)


def limit_memory(extra: int) -> None:
    """Let this process have `extra` bytes of private memory above what it has now; beyond, allocation fails.

    RLIMIT_DATA counts what may be written, so reserved address space (thread arenas) costs nothing."""
    used = private_bytes()
    if used is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (used + extra, used + extra))


def private_bytes() -> int | None:
    """Bytes of private writable memory of this process; None where /proc does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return None
