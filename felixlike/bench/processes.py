"""Run each side of a comparison in its own process with one thread per core, stopped except during its turn.

Input: for each side a picklable function that creates its call. Output: the latencies of its calls. PyTorch's threads
are bound to one core each, because two of them sometimes share a core otherwise. felixlike's and TVM's threads are
placed by felixlike.hardware.placement. OpenMP settings of the user take precedence.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from felixlike.bench.timing import Timed, Timer, interleaved, summary, timer
from felixlike.hardware import placement
from felixlike.hardware.probe import usable_processors
from felixlike.measure.child.confine import confine

Make = Callable[[], Callable[[], object]]
"""Creates a side's call in the process where it runs: a module-level function, or a functools.partial of one."""


_GRACE_SECONDS = 10.0
"""Seconds that a process has to exit before it is killed. Chosen by hand."""


class SideFailed(RuntimeError):
    """Raised when a side does not work on this machine. The message says why."""


class Side:
    """A process for one side, which can load calls repeatedly; a context manager."""

    def __init__(self) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._connection, theirs = spawning.Pipe()
        self._process = spawning.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        with placement.unbound(), _environment(_bound()):
            self._process.start()
        assert self._process.pid is not None
        self._number = self._process.pid
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()
        with suppress(ProcessLookupError):  # the process has exited
            os.kill(self._number, signal.SIGCONT)
        self._process.join(_GRACE_SECONDS)
        self._process.kill()
        self._process.join()

    def load(self, make: Make) -> None:
        """Create the side's call in the process, in place of the previous one. Raise SideFailed."""
        self._ask(make)

    def times(self, calls: int) -> array[float]:
        """Time the call that was loaded last, as a `Timer`."""
        latencies: array[float] = self._ask(calls)
        return latencies

    def _ask(self, request: object) -> Any:
        """Return the answer to a request. The process is stopped before and after."""
        try:
            os.kill(self._number, signal.SIGCONT)
            self._connection.send(request)
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise SideFailed("its process died") from None
        os.kill(self._number, signal.SIGSTOP)
        if isinstance(answer, SideFailed):
            raise answer
        return answer


class Sides:
    """The processes of all sides, reused for further comparisons; a context manager.

    Attributes:
        failures: Why sides of the latest comparison were left out, by name.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self._sides: dict[str, Side] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for side in self._sides.values():
            side.__exit__(kind, error, at)

    def compare(self, makes: Mapping[str, Make], *, seconds_a_side: float = 3.0, slot: float = 0.1) -> dict[str, Timed]:
        """Time sides as `interleaved` does. Print and leave out the sides that fail.

        Args:
            makes: Functions that create the calls, by name.
            seconds_a_side: Seconds of timing per side.
            slot: Seconds per turn.
        """
        self.failures = {}
        timers: dict[str, Timer] = {}
        for name, make in makes.items():
            side = self._sides.get(name) or self._sides.setdefault(name, Side())
            try:
                side.load(make)
                side.times(0)
            except SideFailed as failure:
                print(f"{name} does not work here: {failure}", flush=True)
                self.failures[name] = str(failure)
                side.__exit__(None, None, None)
                del self._sides[name]
                continue
            timers[name] = side.times
        return interleaved(timers, seconds_a_side=seconds_a_side, slot=slot)


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


def _serve(connection: Connection, parent: int) -> None:
    """Load and time calls on request until the parent exits. Output of the calls is discarded."""
    confine(parent)
    times = timer(_nothing)
    while True:
        try:
            request = connection.recv()
            if isinstance(request, int):
                connection.send(times(request))
            else:
                times = timer(_nothing)  # free the previous call first
                times = timer(request())
                connection.send(None)
        except EOFError:
            return
        except Exception as error:
            words = " ".join(str(error).split())
            connection.send(SideFailed(f"{type(error).__name__}: {words}"[:300]))


def _nothing() -> None:
    """Do nothing. Stands in for the call until one is loaded."""


def _bound() -> dict[str, str]:
    """Return the environment that binds each OpenMP thread to one core."""
    places = ",".join(f"{{{min(core)}}}" for core in usable_processors())
    return {"OMP_PROC_BIND": "true", "OMP_PLACES": places}


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that are unset, for processes that are started in the block."""
    missing = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
