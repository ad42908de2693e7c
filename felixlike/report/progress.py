"""One calm line while a run goes on; plain lines where there is no terminal; nothing on request.

In: the session's events. Out: text on standard error, so that a program's own output stays clean. What cannot be
written (a closed pipe, a full disk) is not missed: a run does not end for it.
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
"""Least time between two plain lines."""

_LIVE_SECONDS = 0.1
"""Least time between two states of the live line."""

_CLEAR = "\r\x1b[2K"
"""Begins the terminal's line anew."""


class Reporter:
    """Says nothing. The base of what does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def say(self, text: str) -> None:
        """A step of the run has begun."""

    def event(self, event: Event) -> None:
        """The session's observer."""


class LineReporter(Reporter):
    """Plain lines, not often."""

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
        with contextlib.suppress(Exception):  # closed, full, or somebody's own that is not quite a stream
            self._stream.write(showable(text, getattr(self._stream, "encoding", None) or "utf-8"))
            self._stream.flush()


class LiveReporter(LineReporter):
    """Steps as plain lines; what the session does as one line of a terminal, written over by what comes next.

    Not rich's Live, which hides the cursor until its end, also from a run that is killed, and exits where the terminal
    has gone."""

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
        while text_width(line) > width and ", " in line:  # a line that wraps cannot be written over
            line = line.rpartition(", ")[0]
        self._write(_CLEAR + line[:width])
        self._open = True

    def _clear(self) -> None:
        if self._open:
            self._write(_CLEAR)
            self._open = False


def make_progress(wanted: object) -> Reporter:
    """The reporter for optimize's `progress`: True (a live line on a terminal, else plain lines), "plain", or False.

    Raises InvalidOption for anything else."""
    if not isinstance(wanted, bool) and not (isinstance(wanted, str) and wanted == "plain"):
        raise InvalidOption(f"progress is {shown(wanted)}", where="progress", remedy='give True, False or "plain"')
    stream: TextIO | None = sys.stderr
    if wanted is False or stream is None:
        return Reporter()
    return LiveReporter(stream) if wanted is True and _can_be_written_over(stream) else LineReporter(stream)


def _can_be_written_over(stream: TextIO) -> bool:
    """Whether it is a terminal that knows how to clear a line."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    except (AttributeError, ValueError):  # somebody's own stream, or a closed one
        return False


def _line(event: Event) -> str:
    """task, best latency, trials, time left"""
    state, budget = event.state, event.budget
    best = latency(state.best[0]) if state.best else "none yet"
    of = f"{budget.spent_trials} of " if budget.trials is not None else ""
    trials = counted(budget.spent_trials if budget.trials is None else budget.trials, "trial")
    parts = [f"{state.task.name}: best {best}", of + trials]
    if budget.rounds is not None:
        parts.append(f"round {min(budget.spent_rounds + 1, budget.rounds)} of {budget.rounds}")
    left = budget.seconds_left()
    parts.append(f"{max(0.0, left):.0f} s left" if math.isfinite(left) else f"{budget.elapsed():.0f} s")
    return ", ".join(parts)
