"""Show progress: one live line on a terminal, plain lines elsewhere, or nothing.

Input: events of the session. Output: text on standard error, which keeps the program's own output clean. Write errors
(a closed pipe, a full disk) are ignored, so a run does not end because of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from felixlike._encoding import showable
from felixlike._util.wording import counted, shown
from felixlike.errors import InvalidOption
from felixlike.report.layout import stream_width, text_width
from felixlike.report.tables import latency

if TYPE_CHECKING:
    from felixlike.tuning import Event

_PLAIN_SECONDS = 10.0
"""Minimum seconds between two plain lines. Chosen by hand."""

_LIVE_SECONDS = 0.1
"""Minimum seconds between two updates of the live line. Chosen by hand."""

_CLEAR = "\r\x1b[2K"
"""Control sequence that clears the terminal's line."""


class Reporter:
    """Report nothing. Base class of the other reporters."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def say(self, text: str) -> None:
        """Report that a step of the run begins."""

    def event(self, event: Event) -> None:
        """Report an event of the session."""


class LineReporter(Reporter):
    """Report on plain lines, at most one event per 10 s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = -math.inf

    def say(self, text: str) -> None:
        self._write(f"{text}\n")

    def event(self, event: Event) -> None:
        if time.monotonic() - self._last >= _PLAIN_SECONDS:
            self._last = time.monotonic()
            self.say(_line(event))

    def _write(self, text: str) -> None:
        """Write text and ignore errors."""
        with contextlib.suppress(Exception):  # closed, full, or an object that lacks a stream's methods
            self._stream.write(showable(text, getattr(self._stream, "encoding", None) or "utf-8"))
            self._stream.flush()


class LiveReporter(LineReporter):
    """Report steps as plain lines, and events on one line of the terminal that each event overwrites.

    rich's Live is not used. It hides the cursor until its end, even if the run is killed, and it exits when the
    terminal closes.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._open = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._clear()

    def say(self, text: str) -> None:
        self._clear()
        super().say(text)

    def event(self, event: Event) -> None:
        if time.monotonic() - self._last < _LIVE_SECONDS:
            return
        self._last = time.monotonic()
        line = _line(event)
        width = (stream_width(self._stream) or 80) - 1
        while text_width(line) > width and ", " in line:  # a wrapped line cannot be overwritten
            line = line.rpartition(", ")[0]
        self._write(_CLEAR + line[:width])
        self._open = True

    def _clear(self) -> None:
        """Clear the live line, if there is one."""
        if self._open:
            self._write(_CLEAR)
            self._open = False


def make_progress(wanted: object) -> Reporter:
    """Return the reporter for the option `progress` of `optimize`.

    Args:
        wanted: True for a live line on a terminal and plain lines elsewhere, "plain" for plain lines, False for
            nothing.

    Raises:
        InvalidOption: The value is anything else.
    """
    if not isinstance(wanted, bool) and not (isinstance(wanted, str) and wanted == "plain"):
        raise InvalidOption(
            f'expected True, False or "plain", got {shown(wanted)}',
            where="progress",
            remedy='give "plain" for plain lines, False for none',
        )
    stream: TextIO | None = sys.stderr
    if wanted is False or stream is None:
        return Reporter()
    return LiveReporter(stream) if wanted is True and _can_clear_lines(stream) else LineReporter(stream)


def _can_clear_lines(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can clear a line."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    except (AttributeError, ValueError):  # an object without this method, or a closed stream
        return False


def _line(event: Event) -> str:
    """Return the line of an event: task, best latency, trials, time left."""
    state, budget = event.state, event.budget
    best = latency(state.best[0]) if state.best else "none yet"
    of = f"{budget.spent_trials} of " if budget.trials is not None else ""
    trials = counted(budget.spent_trials if budget.trials is None else budget.trials, "trial")
    parts = [f"{state.task.title}: best {best}", of + trials]
    if budget.rounds is not None:
        parts.append(f"round {min(budget.spent_rounds + 1, budget.rounds)} of {budget.rounds}")
    left = budget.seconds_left()
    parts.append(f"{max(0.0, left):.0f} s left" if math.isfinite(left) else f"{budget.elapsed():.0f} s")
    return ", ".join(parts)
