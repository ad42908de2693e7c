"""Measuring processes without loading TVM for each of them: they are forked from one that has loaded it for all tests.

A tuned model has a fork server of its own, and the suite tunes some hundred models: a second of work each before the
first candidate. `measure/` tests servers as users have them, and commands that run in processes of their own do, too;
all other tests are given servers that differ in this alone.
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
    """A process that is not ours to wait for, used as a Popen is."""

    pid: int
    descriptor: int

    def poll(self) -> int | None:
        """Something if it has ended."""
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> int | None:
        """Until it has ended, or the time is over."""
        ended, _, _ = select.select([self.descriptor], [], [], seconds)
        return 0 if ended else None


class Nursery:
    """A process with TVM loaded that forks fork servers; started when the first is wanted."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._born: list[Born] = []
        self._lock = threading.Lock()

    def spawned(self, server: Any, control: socket.socket, log: IO[bytes]) -> Born:
        """In place of `ForkServer._spawned`."""
        with self._lock:
            if self._control is None:
                self._control = self._started(server)
            request = {"directory": str(server._directory), "at": os.getcwd(), "environment": server._environment()}
            socket.send_fds(self._control, [json.dumps(request).encode()], [control.fileno(), log.fileno()])
            pid, descriptors, _, _ = socket.recv_fds(self._control, 100, 1)
            found = Born(int(pid), descriptors[0])
            self._born.append(found)
        return found

    def close(self) -> None:
        """No more are born; those that are live on."""
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
    """Fork a server for each request until the tests are over."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # as in felixlike.measure.child.fork_server
    from felixlike import _tvm
    from felixlike.measure.child import trial_process  # noqa: F401  loaded here once

    _tvm.load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with contextlib.suppress(OSError):
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, _BYTES, 2)
            if not data:
                return
            ready, told = os.pipe()
            pid = os.fork()
            if not pid:
                os.setsid()
                os.close(told)  # who is born may be ended at once, by its group
                control.close()
                _serve(json.loads(data), *descriptors)
            os.close(told)
            os.read(ready, 1)
            os.close(ready)
            descriptor = os.pidfd_open(pid)
            socket.send_fds(control, [str(pid).encode()], [descriptor])
            for used in (*descriptors, descriptor):
                os.close(used)


def _serve(request: dict[str, Any], control: int, log: int) -> None:
    """Be the fork server that `ForkServer` would have started."""
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
