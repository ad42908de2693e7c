"""Ctrl-C, and signals that are to be like it: when a run is left at once, and when what it has is kept first.

In: SIGINT (SIGTERM and SIGHUP for the command). Out: until the search begins a KeyboardInterrupt, as ever. The first
one during the search ends the search. Afterwards, while there is something to lose, the first one makes the rest brief
(`hurried`), and never comes between the compiler and its result; one more ends the run at once.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, TypeVar

_T = TypeVar("_T")

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_TOGETHER = 0.5
"""Seconds within which signals are one: GNU's timeout sends its own twice, people press a key twice."""


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C's.  number: which."""

    def __init__(self, name: str) -> None:
        """name: of the signal, since TVM hands on the words of an exception and nothing else."""
        super().__init__(name)
        self.number = signal.Signals[name]


class Interrupts:
    """What one run does about signals; a context manager.

    Handlers are exchanged in the main thread only, and only those of which Python makes a KeyboardInterrupt: who has
    one of his own keeps it.

    ended: the search was ended by one.  hurried: what is left is to be brief.  code: the exit code for what arrived
    (130 for Ctrl-C), 0 where nothing did."""

    def __init__(self) -> None:
        self.ended = self.hurried = False
        self.code = 0
        self._searching = self._begun = self._open = False
        self._latest = -math.inf
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                before = signal.getsignal(number)
                if before in (signal.default_int_handler, _terminate):
                    self._before[number] = before
                    signal.signal(number, self._arrived)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    @contextlib.contextmanager
    def search(self) -> Iterator[None]:
        """A block that the first signal ends; all that follows is to be kept."""
        self._searching = self._begun = True
        try:
            yield
        except KeyboardInterrupt as error:
            self.stop(error)
        finally:
            self._searching = False

    def stop(self, error: KeyboardInterrupt | None = None) -> None:
        """Note that an interrupt has ended the search."""
        self.ended = True
        self._note(error)

    def again(self) -> NoReturn:
        """Raise what has arrived, since there is nothing to keep."""
        _raise(self.code - 128)

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was swallowed on its way through somebody else's code."""
        if self._searching and self.ended:
            raise KeyboardInterrupt

    def attempt(self, step: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        """What a step gives; where things are to be brief, or come to be so meanwhile, what stands in for it."""
        try:
            if self.hurried:
                return otherwise()
            self._open = True
            try:
                return step()
            finally:
                self._open = False
        except KeyboardInterrupt as error:
            self.give_way(error)
        return otherwise()

    def give_way(self, error: KeyboardInterrupt) -> None:
        """Note an interrupt of a step; raise it again if it is not the first."""
        self._note(error)
        if self.hurried:
            raise error
        self.hurried = True

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        before, self._latest = self._latest, time.monotonic()
        if self._latest - before < _TOGETHER:
            return
        self.code = self.code or 128 + number
        if self._searching and not self.ended:
            self.ended = True
        elif self._begun and not self.hurried and not self._open:
            self.hurried = True  # nothing is raised: the compiler goes on
            return
        _raise(number)

    def _note(self, error: KeyboardInterrupt | None) -> None:
        self.code = self.code or 128 + getattr(error, "number", signal.SIGINT)


@contextlib.contextmanager
def joined() -> Iterator[Interrupts]:
    """The Interrupts at work, whose block this is in (the command's has a run's in it); else new ones."""
    owner = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", owner)
    if isinstance(owner, Interrupts) and threading.current_thread() is threading.main_thread():
        yield owner
        return
    with Interrupts() as found:
        yield found


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP, unless the process ignores or handles them already, are KeyboardInterrupts inside."""
    changed: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _terminate)
                changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    _raise(number)


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(signal.Signals(number).name)
