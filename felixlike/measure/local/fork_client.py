"""The pool's handle on its fork server: start it, have it fork and end processes, notice its death, start another.

The server is a Python process of its own (`python -m felixlike.measure.child.fork_server`), so the user's main module
is never run again, and it lives in its own session, so that Ctrl-C reaches only the user's process.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from felixlike._util.child_process import environment, python_command
from felixlike.errors import WorkerFailed
from felixlike.hardware import placement

_COMMAND = python_command("felixlike.measure.child.fork_server")
_REPLY_BYTES = 4096
_START_SECONDS = 120
_REPLY_SECONDS = 60
"""A server that ends is noticed at once; so long we wait for one that hangs."""
_SEND_SECONDS = 30.0
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|COOKIE|(^|_)KEY($|_)|(API|ACCESS)_?KEY", re.IGNORECASE
)
"""Names of environment variables that programs commonly keep secrets in, or the way to an agent that has them."""
_STDERR_CHARACTERS = 500
_REMEDY = "run `felixlike doctor`, or look at the memory that is left on this machine"


class ServerDied(Exception):
    """The fork server is gone, and all its processes with it. For the pool only."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended.  status: exit code, or minus a signal's number.  grown: bytes it held above a fresh one."""

    status: int
    grown: int


class ForkServer:
    """One fork server at a time.

    directory: removed by the server when the pool is gone.  threads: of a candidate's call, if the environment does not
    say how many a call has."""

    def __init__(self, directory: Path, *, threads: int) -> None:
        self._directory = directory
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._log = directory / "server.log"
        self._ready = False
        self._bytes = 0
        self.generation = 0
        """Counts the servers started so far: processes of an earlier one are dead."""

    def start(self) -> None:
        """Start a server without waiting until it is ready.  Raises WorkerFailed if there can be no new process."""
        self.close()
        self._ready = False
        self.generation += 1
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, self._log.open("wb") as log, placement.unbound():
                self._process = self._spawned(theirs, log)
        except OSError as error:
            self.close()
            raise WorkerFailed(
                f"a process cannot be started: {error}", where=" ".join(_COMMAND), remedy=_REMEDY
            ) from error

    def _spawned(self, control: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """A Python of its own.  control: its end of the connection.  log: what it writes."""
        return subprocess.Popen(
            [*_COMMAND, str(control.fileno()), str(self._directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(control.fileno(),),
            start_new_session=True,
            env=self._environment(),
        )

    def alive(self, generation: int) -> bool:
        """Whether the server of this generation, and so the processes it made, are still there."""
        return generation == self.generation and self._process is not None and self._process.poll() is None

    def fork(self) -> tuple[int, socket.socket]:
        """A new process and the channel to it; starts a server if there is none.

        Raises WorkerFailed if a server does not come up, ServerDied if it went away just now."""
        self._wait_until_ready()
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                reply = self._request({"do": "fork"}, channel=theirs)
            except ServerDied:
                mine.close()
                raise
        mine.settimeout(_SEND_SECONDS)
        return int(reply["process"]), mine

    def end(self, process: int, *, kill: bool) -> Ending:
        """Wait for a process to end, or kill it.  Raises ServerDied."""
        reply = self._request({"do": "end", "process": process, "kill": kill})
        return Ending(status=reply["status"], grown=max(0, reply["bytes"] - self._bytes))

    def close(self) -> None:
        """End the server and everything it made."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process = self._control = None

    def _wait_until_ready(self) -> None:
        if not self.alive(self.generation):
            self.start()
        if self._ready:
            return
        try:
            self._bytes = self._reply(_START_SECONDS)["bytes"]
        except ServerDied as death:
            words = self._last_words()
            self.close()
            raise WorkerFailed(
                f"the measuring process did not start ({death}): {words or 'it said nothing'}",
                where=" ".join(_COMMAND),
                remedy=_REMEDY,
            ) from None
        self._ready = True

    def _request(self, message: dict[str, Any], channel: socket.socket | None = None) -> dict[str, Any]:
        if self._control is None:
            raise ServerDied("it is not running")
        try:
            fds = [] if channel is None else [channel.fileno()]
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)
            return self._reply(_REPLY_SECONDS)
        except OSError as error:
            self.close()
            raise ServerDied(str(error)) from None
        except BaseException:  # Ctrl-C between request and reply: later replies would be taken for this one
            self.close()
            raise

    def _reply(self, seconds: int) -> dict[str, Any]:
        """The server's next reply.  Raises ServerDied if there is none in time.

        Counted in seconds one by one: while this process is stopped, and the server with it, only one goes by."""
        assert self._control is not None
        self._control.settimeout(1.0)
        for _ in range(seconds):
            try:
                data = self._control.recv(_REPLY_BYTES)
                break
            except TimeoutError:
                continue
            except OSError as error:
                raise ServerDied(str(error)) from None
        else:
            raise ServerDied(f"no reply within {seconds} s")
        if not data:
            raise ServerDied("it ended")
        reply: dict[str, Any] = json.loads(data)
        return reply

    def _last_words(self) -> str:
        """The end of what a server wrote before it died."""
        try:
            return " ".join(self._log.read_text(errors="replace").split())[-_STDERR_CHARACTERS:]
        except OSError:
            return ""

    def _environment(self) -> dict[str, str]:
        """The user's environment without secrets, with the number of threads that a candidate's call has.

        Processes that talk to other machines are forked from the server, and hold a copy of its memory."""
        found = environment(
            TVM_NUM_THREADS=str(placement.threads() if placement.asked_by() else self._threads),
            OPENBLAS_NUM_THREADS="1",  # numpy's threads would not survive a fork
        )
        return {name: value for name, value in found.items() if not _SECRET.search(name)}
