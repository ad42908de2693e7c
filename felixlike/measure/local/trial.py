"""Control one candidate's process: send requests, and return its answer or its failure as a message with a status.

A missing answer within the limit is a TIMEOUT, a closed channel a crash; both end the process. A candidate's failure
never raises an exception here.
"""

import contextlib
import math
import os
import select
import signal
import time

from felixlike._util import spent
from felixlike._util.deadline import OutOfTime
from felixlike.hardware.occupancy import Kernel
from felixlike.measure import messages
from felixlike.measure.local.fork_client import ForkServer, ServerDied
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message

_NEARLY_ALL = 0.8
"""Share of the memory limit from which a crash counts as OUT_OF_MEMORY; chosen by hand."""
_MOST_ANSWER_BYTES = 2**24
"""Largest size of an answer, bytes, so that a compromised process cannot fill this one's memory; chosen by hand."""
_LOST = "its fork server died"


class Trial:
    """Process of a candidate; `index` is the candidate's index in the caller's list."""

    def __init__(self, server: ForkServer, index: int, request: Message) -> None:
        """Fork a process and send it the first request (module, target, memory); raise WorkerFailed or ServerDied."""
        self.index = index
        self.request = request
        self.build_seconds = 0.0
        self.code = ""
        """Digest of the generated code; empty before the candidate is built."""
        self.kernels: list[Message] = []
        """The CUDA compiler's report of each kernel; empty before the candidate is built."""
        self._server = server
        self._process, self.channel = server.fork()
        self.generation = server.generation
        """Generation of its fork server."""
        self._ended = False
        self.step = ""
        """What the process does for the current request: a step of `spent`."""
        self.send(request)

    @property
    def elapsed(self) -> float:
        """Wall time since the current request was sent, s."""
        return time.monotonic() - self._started

    @property
    def lost(self) -> bool:
        """Whether its fork server died, and with it the process."""
        return not self._server.alive(self.generation)

    @property
    def closed(self) -> bool:
        """Whether the process was ended, by itself or by the pool."""
        return self.channel.fileno() < 0

    def run(self, request: Message, seconds: float) -> Message:
        """Send a request and wait for its answer."""
        self.send(request)
        return self.wait(seconds)

    def pause(self) -> None:
        """Stop the process, since its idle threads would continue to spin."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """Send a signal to the process if it is alive."""
        if not self._ended and not self.lost:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, number)

    def wait(self, seconds: float) -> Message:
        """Wait for the answer to the current request; end the process after `seconds`."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        with spent.on(self.step):
            ready = poll.poll(seconds * 1000)
        return self.answer() if ready else self.expire()

    def answer(self) -> Message:
        """Read the answer to the current request from a readable channel: status, elapsed and more."""
        try:
            message = _checked(messages.receive(self.channel, most=_MOST_ANSWER_BYTES))
            spent.worked(self.step, self.elapsed, min(float(message.get("timed", 0.0)), self.elapsed))
            return message
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return self._crash()

    def expire(self) -> Message:
        """End the process at its time limit and return the TIMEOUT."""
        elapsed = self.elapsed
        spent.worked(self.step, elapsed)
        self.close()
        return {"status": Status.TIMEOUT, "message": f"stopped after {elapsed:.1f} s", "elapsed": elapsed}

    def close(self, *, wait: bool = True) -> None:
        """Kill the process. Calling it again has no effect.

        Args:
            wait: Whether to wait until its memory is free, which takes some 10 ms and would disturb what is timed next.
        """
        self.channel.close()
        if self._ended or self.lost:
            return
        self._ended = True
        with contextlib.suppress(ServerDied):
            if wait:
                self._server.end(self._process, kill=True)
            else:
                self._server.drop(self._process)

    def send(self, request: Message) -> None:
        """Send a request without waiting for its answer."""
        self._started = time.monotonic()
        turn = spent.TIMING if "calls" in request else spent.CHECKING
        self.step = spent.BUILDING if "module" in request else turn
        with contextlib.suppress(OSError):  # a dead process is detected when its answer is read
            messages.send(self.channel, request)

    def _crash(self) -> Message:
        """Return the failure of a process that ended without an answer, with the cause from its fork server."""
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
            return {**failure, "status": Status.OUT_OF_MEMORY, "message": f"its process died while using {megabytes}"}
        return {**failure, "message": _cause(ending.status)}


def _checked(answer: Message) -> Message:
    """Return an answer with its status, if what is recorded of it has the right types: a process may send anything.

    Raises ValueError, KeyError, TypeError or OverflowError."""
    elapsed, error = float(answer["elapsed"]), answer.get("error")
    texts = [answer.get(name, "") for name in ("message", "code", "device", "version", "unfit", "lost")]
    if not math.isfinite(elapsed) or not all(isinstance(text, str) for text in texts):
        raise ValueError("elapsed is not finite, or a text is none")
    if not isinstance(error, int | float | None) or not isinstance(answer.get("repeats", []), list):
        raise TypeError("error is no number, or repeats is no list")
    for kernel in answer.get("kernels", ()):
        Kernel.of(kernel)
    return {**answer, "status": Status(answer["status"]), "elapsed": elapsed}


def in_time(answer: Message, limit: float) -> Message:
    """Return an answer, or raise OutOfTime if the wait for it ended before the candidate's limit of seconds."""
    if answer["status"] is Status.TIMEOUT and answer["elapsed"] < limit:
        raise OutOfTime
    return answer


def _cause(status: int) -> str:
    """Return the message for an exit code or, if negative, a signal."""
    if status >= 0:
        return f"its process exited with code {status} and no answer"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process died of {name}"
