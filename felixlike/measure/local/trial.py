"""One candidate under way: its process, its channel, and every way it can end, told as a message with a status.

Silence beyond the limit is a TIMEOUT, a closed channel a crash; both end the process. Nothing here raises on account of
a candidate.
"""

import contextlib
import os
import select
import signal
import time

from felixlike._util.deadline import OutOfTime
from felixlike.measure import messages
from felixlike.measure.local.fork_client import ForkServer, ServerDied
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message

_NEARLY_ALL = 0.8
_MOST_ANSWER_BYTES = 2**24
"""Of an answer, which holds some seconds and a line of text; so that a process that was taken over cannot fill ours."""
_LOST = "its fork server died"


class Trial:
    """A candidate's process.  index: the candidate's place in the caller's list."""

    def __init__(self, server: ForkServer, index: int, request: Message) -> None:
        """Fork a process and have it build (request: module, target, memory).  Raises WorkerFailed, ServerDied."""
        self.index = index
        self.request = request
        self.build_seconds = 0.0
        self.code = ""
        """Digest of the generated code, once it is built."""
        self.kernels: list[Message] = []
        """What the CUDA compiler said of its kernels, once it is built."""
        self._server = server
        self._process, self.channel = server.fork()
        self.generation = server.generation
        """Of its server."""
        self._ended = False
        self.send(request)

    @property
    def elapsed(self) -> float:
        """Wall seconds since the request under way was sent."""
        return time.monotonic() - self._started

    @property
    def lost(self) -> bool:
        """Whether its server died, and so the process."""
        return not self._server.alive(self.generation)

    @property
    def closed(self) -> bool:
        """Whether the process was ended, by itself or by the pool."""
        return self.channel.fileno() < 0

    def run(self, request: Message, seconds: float) -> Message:
        """Send the second request and wait for its answer."""
        self.send(request)
        return self.wait(seconds)

    def pause(self) -> None:
        """Stop the process, whose threads otherwise go on waiting for work by spinning."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if not self._ended and not self.lost:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, number)

    def wait(self, seconds: float) -> Message:
        """Wait for the answer to the request under way."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        return self.answer() if poll.poll(seconds * 1000) else self.expire()

    def answer(self) -> Message:
        """The answer to the request under way, once the channel can be read: status, elapsed and more."""
        try:
            message = messages.receive(self.channel, most=_MOST_ANSWER_BYTES)
            return {**message, "status": Status(message["status"]), "elapsed": float(message["elapsed"])}
        except (OSError, ValueError, KeyError, TypeError):
            return self._crash()

    def expire(self) -> Message:
        """End the process for having taken too long."""
        elapsed = self.elapsed
        self.close()
        return {"status": Status.TIMEOUT, "message": f"stopped after {elapsed:.1f} s", "elapsed": elapsed}

    def close(self) -> None:
        """End the process, whatever it does.  May be called again."""
        self.channel.close()
        if self._ended or self.lost:
            return
        self._ended = True
        with contextlib.suppress(ServerDied):
            self._server.end(self._process, kill=True)

    def send(self, request: Message) -> None:
        """Send a request, whose answer is still to be waited for."""
        self._started = time.monotonic()
        with contextlib.suppress(OSError):  # a process that is dead already shows by its silence
            messages.send(self.channel, request)

    def _crash(self) -> Message:
        """The process left without an answer: ask its server how."""
        elapsed = self.elapsed
        self.channel.close()
        failure = {"status": Status.CRASHED, "message": _LOST, "elapsed": elapsed}
        if self._ended or self.lost:
            return failure
        self._ended = True
        try:
            ending = self._server.end(self._process, kill=False)
        except ServerDied:
            return failure
        if ending.grown >= _NEARLY_ALL * self.request["memory"]:
            megabytes = f"{ending.grown / 2**20:.0f} MB"
            return {**failure, "status": Status.OUT_OF_MEMORY, "message": f"its process died holding {megabytes}"}
        return {**failure, "message": _cause(ending.status)}


def in_time(answer: Message, limit: float) -> Message:
    """Return an answer, or raise OutOfTime if the wait for it ended before the candidate's limit of seconds."""
    if answer["status"] is Status.TIMEOUT and answer["elapsed"] < limit:
        raise OutOfTime
    return answer


def _cause(status: int) -> str:
    if status >= 0:
        return f"its process left with exit code {status} and no answer"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process died of {name}"
