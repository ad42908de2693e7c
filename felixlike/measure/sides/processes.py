"""Run each side of a comparison in its own process with one thread per core, stopped except during its turn.

Input: for each side a picklable function that creates its call. Output: the latencies of its calls. PyTorch's threads
are bound to one core each, because two of them sometimes share a core otherwise. felixlike's and TVM's threads are
placed by felixlike.hardware.placement. OpenMP settings of the user take precedence.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cloudpickle

from felixlike._util.child_process import environment
from felixlike.errors import first_line
from felixlike.hardware import placement
from felixlike.hardware.probe import usable_processors
from felixlike.measure.child.confine import confine
from felixlike.measure.sides.timing import Timed, Timer, interleaved, summary, timer


@dataclass(frozen=True, slots=True)
class Loaded:
    """A side's call with facts about it.

    Attributes:
        call: The call.
        facts: What the side reports about itself. It can be pickled.
    """

    call: Callable[[], object]
    facts: Any


Make = Callable[[], Callable[[], object] | Loaded]
"""Creates a side's call in the process where it runs."""


_GRACE_SECONDS = 10.0
"""Seconds that a process has to exit before it is killed. Chosen by hand."""


class SideFailed(RuntimeError):
    """Raised when a side does not work on this machine. The message says why."""


class Side:
    """A process for one side, which can load calls repeatedly; a context manager.

    Args:
        caches: Folder of the caches of felixlike and PyTorch in this process; None for the user's.
    """

    def __init__(self, caches: Path | None = None) -> None:
        self._connection, theirs = Pipe()
        # multiprocessing would run the user's main module again, which may have no guard (if __name__ == "__main__").
        code = f"from {__name__} import serve; serve({theirs.fileno()}, {os.getpid()})"
        with placement.unbound(), theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno()],
                env={**_bound(), **environment(**_caches_in(caches))},
            )
        self._number = self._process.pid
        self._send(list(sys.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()
        with suppress(ProcessLookupError):  # the process has exited
            os.kill(self._number, signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        self._process.kill()
        self._process.wait()

    def load(self, make: Make) -> Any:
        """Create the side's call in the process, in place of the previous one. Return its facts. Raise SideFailed."""
        return self._ask(make)

    def times(self, calls: int) -> array[float]:
        """Time the call that was loaded last, as a `Timer`."""
        latencies: array[float] = self._ask(calls)
        return latencies

    def _send(self, request: object) -> None:
        """Send an object, whole with its class even if that is in the main module or a notebook. Raise SideFailed."""
        try:
            message = cloudpickle.dumps(request)
        except Exception as error:  # of the user's classes
            raise SideFailed(f"it cannot be sent to another process ({first_line(error)})") from None
        self._connection.send_bytes(message)

    def _ask(self, request: object) -> Any:
        """Return the answer to a request. The process is stopped before and after."""
        try:
            os.kill(self._number, signal.SIGCONT)
            self._send(request)
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise SideFailed("its process died") from None
        os.kill(self._number, signal.SIGSTOP)
        if isinstance(answer, SideFailed):
            raise answer
        return answer


class Sides:
    """The processes of all sides, reused for further comparisons; a context manager.

    Args:
        caches: Folder in which each side has a folder of its own for caches; None for the user's caches.

    Attributes:
        failures: Why sides of the latest comparison were left out, by name.
        facts: Facts about the sides of the latest comparison, by name; None for sides that report nothing.
    """

    def __init__(self, caches: Path | None = None) -> None:
        self.failures: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self._caches = caches
        self._sides: dict[str, Side] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for side in self._sides.values():
            side.__exit__(kind, error, at)

    def compare(
        self,
        makes: Mapping[str, Make],
        *,
        seconds_a_side: float = 3.0,
        slot: float = 0.1,
        say: Callable[[str], object] = print,
    ) -> dict[str, Timed]:
        """Time sides as `interleaved` does. Leave out the sides that fail.

        Args:
            makes: Functions that create the calls, by name.
            seconds_a_side: Seconds of timing per side.
            slot: Seconds per turn.
            say: Called with the reason for each side that fails.
        """
        self.failures, self.facts = {}, {}
        timers: dict[str, Timer] = {}
        for name, make in makes.items():
            side = self._sides.get(name) or self._sides.setdefault(name, Side(self._caches_of(name)))
            try:
                self.facts[name] = side.load(make)
                side.times(0)
            except SideFailed as failure:
                say(f"{name} does not work here: {failure}")
                self.failures[name] = str(failure)
                self.facts.pop(name, None)
                side.__exit__(None, None, None)
                del self._sides[name]
                continue
            timers[name] = side.times
        return interleaved(timers, seconds_a_side=seconds_a_side, slot=slot)

    def start(self, name: str, make: Make) -> Any:
        """Load a side in a process that then ends, with the caches of its name. Return its facts. Raise SideFailed."""
        with Side(self._caches_of(name)) as side:
            return side.load(make)

    def _caches_of(self, name: str) -> Path | None:
        """Return the folder of a side's caches. Compilers split paths at spaces and commas."""
        return self._caches and self._caches / re.sub(r"\W+", "-", name)


def fresh(make: Make, *, processes: int = 10, seconds: float = 0.5) -> list[Timed]:
    """Time one side in several processes, one after another.

    Args:
        make: Function that creates the call.
        processes: Number of processes.
        seconds: Approximate seconds of timing per process.
    """
    results = []
    for _ in range(processes):
        with Side() as side:
            side.load(make)
            calls = max(10, round(seconds / max(min(side.times(5)), 1e-7)))
            results.append(summary(side.times(calls)))
    return results


def serve(descriptor: int, parent: int) -> None:
    """Load and time calls on request until the parent exits. Output of the calls is discarded.

    Args:
        descriptor: File descriptor of the connection. The first message is the parent's import path.
        parent: Process id of the parent.
    """
    confine(parent)
    connection = Connection(descriptor)
    sys.path[:] = pickle.loads(connection.recv_bytes())
    times = timer(_nothing)
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())
            if isinstance(request, int):
                connection.send(times(request))
            else:
                times = timer(_nothing)  # free the previous call first
                made = request()
                loaded = made if isinstance(made, Loaded) else Loaded(made, None)
                times = timer(loaded.call)
                connection.send(loaded.facts)
                del made, loaded
        except EOFError:
            return
        except SideFailed as failure:
            connection.send(failure)
        except Exception as error:
            words = " ".join(str(error).split())
            connection.send(SideFailed(f"{type(error).__name__}: {words}"[:300]))


def _nothing() -> None:
    """Do nothing. Stands in for the call until one is loaded."""


def _caches_in(folder: Path | None) -> dict[str, str]:
    """Return the environment that puts the caches of felixlike and PyTorch into a folder."""
    if folder is None:
        return {}
    places = {"XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return {variable: str(folder / name) for variable, name in places.items()}


def _bound() -> dict[str, str]:
    """Return the environment that binds each OpenMP thread to one core."""
    places = ",".join(f"{{{min(core)}}}" for core in usable_processors())
    return {"OMP_PROC_BIND": "true", "OMP_PLACES": places}
