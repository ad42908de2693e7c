"""Handle Ctrl-C, and signals that act like it, during a run.

Input: SIGINT (also SIGTERM and SIGHUP for the command). Output: before the search begins, a KeyboardInterrupt as
usual. During the search, the first interrupt ends the search. After it, while there are results to save, the first
interrupt shortens the remaining steps (`hurried`) and does not interrupt the compiler. One more ends the run
immediately.
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
"""Signals that are handled."""

TOGETHER_SECONDS = 0.5
"""Seconds within which several signals count as one.

GNU's timeout sends its signal twice, and people press a key twice.
"""


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C has arrived.

    Attributes:
        number: Number of the signal.
    """

    def __init__(self, name: str) -> None:
        """Store the number of the signal of this name.

        The argument is a name because TVM passes on only the message of an exception.
        """
        super().__init__(name)
        self.number = signal.Signals[name]


class Interrupts:
    """Handle the signals of one run, as a context manager.

    Handlers are replaced in the main thread only, and only where Python would raise KeyboardInterrupt. A user's own
    handlers stay.

    Attributes:
        ended: Whether a signal has ended the search.
        hurried: Whether the remaining steps are shortened.
        code: Exit code for the first signal (130 for Ctrl-C), 0 without a signal.
    """

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
        """Run a block that the first signal ends. The code after the block still runs."""
        self._searching = self._begun = True
        try:
            yield
        except KeyboardInterrupt as error:
            self.stop(error)
        finally:
            self._searching = False

    def stop(self, error: KeyboardInterrupt | None = None) -> None:
        """Record that an interrupt has ended the search."""
        self.ended = True
        self._note(error)

    def again(self) -> NoReturn:
        """Raise the exception of the signal that has arrived, because there is nothing to save."""
        _raise(self.code - 128)

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was swallowed by foreign code during the search."""
        if self._searching and self.ended:
            raise KeyboardInterrupt

    def attempt(self, step: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        """Return the result of `step`, or that of `otherwise` if the run is hurried or becomes so during the step."""
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
        """Record an interrupt of a step. Raises it again if it is not the first."""
        self._note(error)
        if self.hurried:
            raise error
        self.hurried = True

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        before, self._latest = self._latest, time.monotonic()
        if self._latest - before < TOGETHER_SECONDS:
            return
        self.code = self.code or 128 + number
        if self._searching and not self.ended:
            self.ended = True
        elif self._begun and not self.hurried and not self._open:
            self.hurried = True  # do not raise: the compiler continues
            return
        _raise(number)

    def _note(self, error: KeyboardInterrupt | None) -> None:
        """Record the exit code of the first interrupt."""
        self.code = self.code or 128 + getattr(error, "number", signal.SIGINT)


@contextlib.contextmanager
def joined() -> Iterator[Interrupts]:
    """Yield the active Interrupts if the block runs inside one (a run inside the command), else new ones."""
    owner = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", owner)
    if isinstance(owner, Interrupts) and threading.current_thread() is threading.main_thread():
        yield owner
        return
    with Interrupts() as interrupts:
        yield interrupts


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupts inside the block.

    Signals that the process ignores or handles already stay as they are.
    """
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
    """Handle SIGTERM or SIGHUP by raising Terminated."""
    _raise(number)


def _raise(number: int) -> NoReturn:
    """Raise KeyboardInterrupt for SIGINT, Terminated for other signals."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(signal.Signals(number).name)
