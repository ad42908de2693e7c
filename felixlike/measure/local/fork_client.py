"""Control a pool's fork server: start it, fork and end processes with it, and replace it when it has died.

The server is a separate Python process (`python -m felixlike.measure.child.fork_server`), so the user's main module is
not executed again. It has a session of its own, so Ctrl-C reaches only the user's process.
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

COMMAND = python_command("felixlike.measure.child.fork_server")
"""Command that starts a fork server."""
_REPLY_BYTES = 4096
"""Largest size of a reply, bytes."""
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|COOKIE|(^|_)KEY($|_)|(API|ACCESS)_?KEY", re.IGNORECASE
)
"""Names of environment variables that commonly hold secrets, or the address of an agent that has them."""
_STDERR_CHARACTERS = 500
"""Length of the server's output in an error message, characters; chosen by hand."""
_REMEDY = "run `felixlike doctor`, or check the free memory of this machine"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long processes are waited for, s. All values are chosen by hand.

    Attributes:
        start: For the start of a server.
        reply: For a reply of a server that hangs. The end of a server is noticed at once.
        send: For sending to a candidate's process.
    """

    start: int = 120
    reply: int = 60
    send: float = 30.0


_TIMEOUTS = Timeouts()


class ServerDied(Exception):
    """The fork server has died, and with it all its processes. Internal to the pool."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a process.

    Attributes:
        status: Exit code, or minus a signal's number.
        grown: Peak memory above that of a fresh process, bytes.
    """

    status: int
    grown: int


class ForkServer:
    """Client of one fork server at a time.

    Args:
        directory: Folder of the pool's files, which the server removes when the pool is gone.
        threads: Number of threads of a candidate's call, unless the environment sets one.
    """

    def __init__(self, directory: Path, *, threads: int) -> None:
        self._directory = directory
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._log = directory / "server.log"
        self._ready = False
        self._bytes = 0
        self.generation = 0
        """Number of servers started so far; processes of earlier ones are dead."""

    def start(self) -> None:
        """Start a server without waiting until it is ready; raise WorkerFailed if no process can be started."""
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
                f"the measuring process could not be started: {error}", where=" ".join(COMMAND), remedy=_REMEDY
            ) from error

    def _spawned(self, control: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the server's Python process; `control` is its end of the connection, `log` receives its stderr."""
        return subprocess.Popen(
            [*COMMAND, str(control.fileno()), str(self._directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(control.fileno(),),
            start_new_session=True,
            env=self._environment(),
        )

    def alive(self, generation: int) -> bool:
        """Return whether the server of this generation, and therefore its processes, are alive."""
        return generation == self.generation and self._process is not None and self._process.poll() is None

    def fork(self) -> tuple[int, socket.socket]:
        """Fork a process and return its id and the channel to it; start a server if there is none.

        Raises WorkerFailed if a server does not start, ServerDied if it dies during the request."""
        self._wait_until_ready()
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                reply = self._request({"do": "fork"}, channel=theirs)
            except ServerDied:
                mine.close()
                raise
        mine.settimeout(_TIMEOUTS.send)
        return int(reply["process"]), mine

    def end(self, process: int, *, kill: bool) -> Ending:
        """Wait for a process to end, or kill it; raise ServerDied if the server is gone."""
        reply = self._request({"do": "end", "process": process, "kill": kill})
        return Ending(status=reply["status"], grown=max(0, reply["bytes"] - self._bytes))

    def drop(self, process: int) -> None:
        """Kill a process without waiting for its end; raise ServerDied if the server is gone."""
        self._send({"do": "drop", "process": process})

    def close(self) -> None:
        """End the server and its processes."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process = self._control = None

    def _wait_until_ready(self) -> None:
        """Wait for the server's first reply; raise WorkerFailed with its last output if it does not start."""
        if not self.alive(self.generation):
            self.start()
        if self._ready:
            return
        try:
            self._bytes = self._reply(_TIMEOUTS.start)["bytes"]
        except ServerDied as death:
            words = self._last_words()
            self.close()
            raise WorkerFailed(
                f"the measuring process did not start ({death}): {words or 'it printed nothing'}",
                where=" ".join(COMMAND),
                remedy=_REMEDY,
            ) from None
        self._ready = True

    def _request(self, message: dict[str, Any], channel: socket.socket | None = None) -> dict[str, Any]:
        """Send a request, with a channel's descriptor, and return the reply; raise ServerDied."""
        try:
            self._send(message, channel)
            return self._reply(_TIMEOUTS.reply)
        except BaseException:  # Ctrl-C between request and reply: later replies would be taken for this one
            self.close()
            raise

    def _send(self, message: dict[str, Any], channel: socket.socket | None = None) -> None:
        """Send a request, with a channel's descriptor; raise ServerDied."""
        if self._control is None:
            raise ServerDied("the fork server is not running")
        try:
            fds = [] if channel is None else [channel.fileno()]
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)
        except OSError as error:
            self.close()
            raise ServerDied(str(error)) from None

    def _reply(self, seconds: int) -> dict[str, Any]:
        """Return the server's next reply; raise ServerDied if there is none within `seconds`.

        The loop waits one second at a time, so at most one second counts while this process and the server are
        stopped."""
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
            raise ServerDied(f"the fork server did not reply within {seconds} s")
        if not data:
            raise ServerDied("the fork server exited")
        reply: dict[str, Any] = json.loads(data)
        return reply

    def _last_words(self) -> str:
        """Return the end of a dead server's stderr."""
        try:
            return " ".join(self._log.read_text(errors="replace").split())[-_STDERR_CHARACTERS:]
        except OSError:
            return ""

    def _environment(self) -> dict[str, str]:
        """Return the user's environment without secrets, with the number of threads of a candidate's call.

        Processes that communicate with other machines are forked from the server and hold a copy of its memory."""
        variables = environment(
            TVM_NUM_THREADS=str(placement.threads() if placement.asked_by() else self._threads),
            OPENBLAS_NUM_THREADS="1",  # numpy's threads would not survive a fork
        )
        return {name: value for name, value in variables.items() if not _SECRET.search(name)}
