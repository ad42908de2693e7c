"""The fork server: imports TVM once, then forks one process per candidate, and tells how each ended.

In: requests on a control socket, one JSON datagram each, "fork" with the new process's channel attached.
Out: one reply each. It compiles and runs nothing itself, since TVM's thread pool does not survive a fork.
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
_GRACE_SECONDS = 2.0


def main(control_fd: int, directory: str) -> None:
    """Serve until the pool is gone; then end everything made here and remove the pool's directory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's business
    # tvm_ffi imports torch if it can; nothing here needs it, and without it the start is 2.5 s and 200 MB cheaper.
    sys.modules["torch"] = None  # type: ignore[assignment]
    # Loaded here once, not in every process that needs it.
    from felixlike import _tvm
    from felixlike._util import scratch
    from felixlike.codegen import nvrtc
    from felixlike.measure.child import trial_process

    _tvm.load()
    nvrtc.library()
    gc.collect()
    gc.freeze()  # leaves shared pages alone in the children
    control = socket.socket(fileno=control_fd)
    with contextlib.suppress(OSError):  # the pool may close the connection at any time
        _reply(control, {"ready": os.getpid(), "bytes": _peak_bytes(resource.getrusage(resource.RUSAGE_SELF))})
        while True:
            data, channels, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1)
            if not data:
                break
            request = json.loads(data)
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
    """Wait for a process to end, by force if `kill` or if it takes too long.

    status: exit code, or minus the signal that ended it.  bytes: the most memory it held."""
    if kill:
        os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + _GRACE_SECONDS
    found, status, usage = os.wait4(process, os.WNOHANG)
    while not found:
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.001)
        found, status, usage = os.wait4(process, os.WNOHANG)
    return {"status": os.waitstatus_to_exitcode(status), "bytes": _peak_bytes(usage)}


def _peak_bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
