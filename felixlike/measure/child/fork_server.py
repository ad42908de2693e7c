"""Run the fork server: import TVM once, fork a process for each candidate, and report how each ended.

The input is requests on a control socket, one JSON datagram each; "fork" has the new process's channel attached. The
output is one reply to each, except to "drop", which kills a process without waiting for its end. The server runs
no kernel itself, since pools of threads do not survive a fork.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

_REQUEST_BYTES = 4096
"""Largest size of a request, bytes."""
_GRACE_SECONDS = 2.0
"""Time for a process to end by itself before it is killed, s; chosen by hand."""


def main(control_fd: int, directory: str) -> None:
    """Serve requests until the pool is gone, then end all forked processes and remove the pool's directory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C
    # tvm_ffi imports torch if available. It is not needed here, and costs 2.5 s and 200 MB at the start.
    sys.modules["torch"] = None  # type: ignore[assignment]
    # Imported once here instead of in every forked process.
    from felixlike import _tvm
    from felixlike._util import scratch
    from felixlike.codegen import nvrtc
    from felixlike.measure.child import trial_process

    _tvm.load()
    nvrtc.library()
    trial_process.prepare()
    gc.collect()
    gc.freeze()  # keeps the children's garbage collector from copying shared pages
    control = socket.socket(fileno=control_fd)
    with contextlib.suppress(OSError):  # the pool may close the connection at any time
        _reply(control, {"ready": os.getpid(), "bytes": _peak_bytes(resource.getrusage(resource.RUSAGE_SELF))})
        dropped: list[int] = []
        while True:
            data, channels, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1)
            if not data:
                break
            dropped = [process for process in dropped if os.waitpid(process, os.WNOHANG)[0] == 0]
            request = json.loads(data)
            if request["do"] == "drop":
                os.kill(request["process"], signal.SIGKILL)
                dropped.append(request["process"])
                continue
            if request["do"] == "end":
                _reply(control, end(request["process"], kill=request["kill"]))
                continue
            server = os.getpid()
            process = os.fork()
            if process == 0:
                control.close()
                trial_process.main(channels[0], server)
            os.close(channels[0])
            _reply(control, {"process": process})
    scratch.discard(Path(directory))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def end(process: int, *, kill: bool) -> dict[str, int]:
    """Wait for a process to end; kill it if `kill` is set, or after 2 s.

    Returns:
        "status", the exit code or minus the signal that ended it, and "bytes", its peak memory.
    """
    if kill:
        os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + _GRACE_SECONDS
    ended, status, usage = os.wait4(process, os.WNOHANG)
    while not ended:
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.001)
        ended, status, usage = os.wait4(process, os.WNOHANG)
    return {"status": os.waitstatus_to_exitcode(status), "bytes": _peak_bytes(usage)}


def _peak_bytes(usage: resource.struct_rusage) -> int:
    """Return the peak memory of a process, bytes; ru_maxrss is in bytes on macOS, else in KiB."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    """Send a reply."""
    control.send(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
