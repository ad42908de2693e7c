"""Sides of a comparison, each in a process of its own, a thread on each core, stopped when it is not its turn.

In: for each side a function that makes its call, which can be pickled. Out: how long its calls take. PyTorch's threads
are bound to a core each, because two of them sometimes share one otherwise; felixlike's and TVM's are by
felixlike.hardware.placement. The user's own settings of OpenMP win.
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
"""Makes a side's call where it is to run: a function of a module, or a functools.partial of one."""


_GRACE_SECONDS = 10.0
"""For a process to end by itself."""


class SideFailed(RuntimeError):
    """A side does not work on this machine; says why."""


class Side:
    """A process for one side, which may be loaded again and again.  A context manager."""

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
        with suppress(ProcessLookupError):  # it has died already
            os.kill(self._number, signal.SIGCONT)
        self._process.join(_GRACE_SECONDS)
        self._process.kill()
        self._process.join()

    def load(self, make: Make) -> None:
        """Make the side's call there, in the place of the one before.  Raises SideFailed."""
        self._ask(make)

    def times(self, calls: int) -> array[float]:
        """A `Timer` of the call that was loaded last."""
        found: array[float] = self._ask(calls)
        return found

    def _ask(self, request: object) -> Any:
        """The answer to a request, from a process that is stopped before and after."""
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
    """A process for each side's name, kept for further comparisons.  A context manager.

    failures: why sides of the latest comparison were left out, by name."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self._found: dict[str, Side] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for side in self._found.values():
            side.__exit__(kind, error, at)

    def compare(self, makes: Mapping[str, Make], *, seconds_a_side: float = 3.0, slot: float = 0.1) -> dict[str, Timed]:
        """As `interleaved`; sides that do not work here are left out, with a word."""
        self.failures = {}
        timers: dict[str, Timer] = {}
        for name, make in makes.items():
            side = self._found.get(name) or self._found.setdefault(name, Side())
            try:
                side.load(make)
                side.times(0)
            except SideFailed as failure:
                print(f"{name} does not work here: {failure}", flush=True)
                self.failures[name] = str(failure)
                side.__exit__(None, None, None)
                del self._found[name]
                continue
            timers[name] = side.times
        return interleaved(timers, seconds_a_side=seconds_a_side, slot=slot)


def fresh(make: Make, *, processes: int = 10, seconds: float = 0.5) -> list[Timed]:
    """One side in several processes, one after another, each timed for about so many seconds."""
    found = []
    for _ in range(processes):
        with Side() as side:
            side.load(make)
            calls = max(10, round(seconds / max(min(side.times(5)), 1e-7)))
            found.append(summary(side.times(calls)))
    return found


def _serve(connection: Connection, parent: int) -> None:
    """Load calls and time them, until the parent is gone.  Its outputs are silent."""
    confine(parent)
    times = timer(_nothing)
    while True:
        try:
            request = connection.recv()
            if isinstance(request, int):
                connection.send(times(request))
            else:
                times = timer(_nothing)  # what it held goes first
                times = timer(request())
                connection.send(None)
        except EOFError:
            return
        except Exception as error:
            words = " ".join(str(error).split())
            connection.send(SideFailed(f"{type(error).__name__}: {words}"[:300]))


def _nothing() -> None:
    """The call before any is loaded."""


def _bound() -> dict[str, str]:
    """The environment that binds OpenMP's threads to a core each."""
    places = ",".join(f"{{{min(core)}}}" for core in usable_processors())
    return {"OMP_PROC_BIND": "true", "OMP_PLACES": places}


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """These variables, where they are not set, for processes that are started inside."""
    missing = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
