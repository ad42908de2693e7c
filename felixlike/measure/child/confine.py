"""Confine a candidate's process: it dies with its server, prints nothing, leaves no core file, has a memory limit.

If a container or the machine runs out of memory, Linux ends this process before the user's. Systems other than Linux
lack some of these features, which are skipped there.
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
"""Highest value of oom_score_adj (proc(5)); Linux ends such processes first."""
_C = ctypes.CDLL(None)


def confine(parent: int) -> None:
    """Confine a new process; call this first. `parent` is the process id of its fork server."""
    if sys.platform == "linux":
        _C.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # the server died before prctl
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM)
    # TVM's handlers print a traceback inside the signal handler, which can hang; the default handlers end the process.
    for deadly in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTERM):
        signal.signal(deadly, signal.SIG_DFL)
    silence()


def silence() -> None:
    """Redirect stdin, stdout and stderr to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)


def limit_memory(extra: int) -> None:
    """Limit this process's private memory to its present size plus `extra` bytes; further allocations fail.

    RLIMIT_DATA counts writable memory only, not reserved address space (thread arenas)."""
    used = private_bytes()
    if used is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (used + extra, used + extra))


def private_bytes() -> int | None:
    """Return the private writable memory of this process, bytes; None without /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return None
