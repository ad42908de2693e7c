"""Fork measuring processes from one process that has loaded TVM for all tests.

Each tuned model has its own fork server, which takes a second to start, and the suite tunes about a hundred models.
Tests of `measure/` and commands that run in their own processes use regular servers. All other tests use these
servers, which differ only in how they start.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, NamedTuple

_BYTES = 200_000


class Born(NamedTuple):
    """A process that is not a child of this process, with the interface of Popen."""

    pid: int
    descriptor: int

    def poll(self) -> int | None:
        """Return a number if the process has ended, else None."""
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until the process has ended or `seconds` have passed."""
        ended, _, _ = select.select([self.descriptor], [], [], seconds)
        return 0 if ended else None


class Nursery:
    """Fork fork servers from a process that has TVM loaded. The process starts at the first request."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._born: list[Born] = []
        self._lock = threading.Lock()

    def spawned(self, server: Any, control: socket.socket, log: IO[bytes]) -> Born:
        """Replace `ForkServer._spawned`."""
        with self._lock:
            if self._control is None:
                self._control = self._started(server)
            request = {"directory": str(server._directory), "at": os.getcwd(), "environment": server._environment()}
            socket.send_fds(self._control, [json.dumps(request).encode()], [control.fileno(), log.fileno()])
            pid, descriptors, _, _ = socket.recv_fds(self._control, 100, 1)
            process = Born(int(pid), descriptors[0])
            self._born.append(process)
        return process

    def close(self) -> None:
        """Stop forking. Forked servers continue."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait(60)
        for born in self._born:
            os.close(born.descriptor)

    def _started(self, server: Any) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = server._environment()
        environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), environment["PYTHONPATH"]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environment,
            )
        return ours


def main(control: socket.socket) -> None:
    """Fork a server for each request until the tests end."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # as in felixlike.measure.child.fork_server
    from felixlike import _tvm
    from felixlike.measure.child import trial_process  # noqa: F401  loaded here once

    _tvm.load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    with contextlib.suppress(OSError):
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, _BYTES, 2)
            if not data:
                return
            ready, write_end = os.pipe()
            pid = os.fork()
            if not pid:
                os.setsid()
                os.close(write_end)  # the process has its own group now and can be killed through it
                control.close()
                _serve(json.loads(data), *descriptors)
            os.close(write_end)
            os.read(ready, 1)
            os.close(ready)
            descriptor = os.pidfd_open(pid)
            socket.send_fds(control, [str(pid).encode()], [descriptor])
            for used in (*descriptors, descriptor):
                os.close(used)


def _serve(request: dict[str, Any], control: int, log: int) -> None:
    """Run the fork server that `ForkServer` would have started."""
    from felixlike.measure.child import fork_server

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 2)
    os.chdir(request["at"])
    os.environ.clear()
    os.environ.update(request["environment"])
    try:
        fork_server.main(control, request["directory"])
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
