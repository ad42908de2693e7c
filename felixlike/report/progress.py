"""One calm line while a run goes on; plain lines where there is no terminal; nothing on request.

In: the session's events. Out: text on stderr, so that a program's own output stays clean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn

from felixlike.errors import InvalidOption
from felixlike.report.tables import latency
from felixlike.tuning import Event

_PLAIN_SECONDS = 10.0
"""Least time between two plain lines."""


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

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = -math.inf

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def event(self, event: Event) -> None:
        if time.monotonic() - self._last >= _PLAIN_SECONDS:
            self._last = time.monotonic()
            self.say(_line(event))


class LiveReporter(Reporter):
    """One line that is written over."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True)
        self._line: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        self._line = self._progress.add_task("starting", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        if self._line is not None:
            self._progress.update(self._line, description=text.replace("[", r"\["))

    def event(self, event: Event) -> None:
        self.say(_line(event))


def make_progress(wanted: bool | str | Callable[[str], None]) -> Reporter:
    """The reporter for optimize's `progress`: True (a live line on a terminal, else plain lines), "plain", or False.

    Raises InvalidOption for anything else."""
    if wanted is False:
        return Reporter()
    console = Console(stderr=True)
    if wanted == "plain" or (wanted is True and not console.is_terminal):
        return LineReporter(console)
    if wanted is True:
        return LiveReporter(console)
    raise InvalidOption(f"progress is {wanted!r}", where="progress", remedy='give True, False or "plain"')


def _line(event: Event) -> str:
    """task, best latency, trials, time left"""
    state, budget = event.state, event.budget
    best = latency(state.best[0]) if state.best else "none yet"
    of = f" of {budget.trials}" if budget.trials is not None else ""
    parts = [f"{state.task.name}: best {best}", f"{budget.spent_trials}{of} trials"]
    if budget.rounds is not None:
        parts.append(f"round {min(budget.spent_rounds + 1, budget.rounds)} of {budget.rounds}")
    left = budget.seconds_left()
    parts.append(f"{max(0.0, left):.0f} s left" if math.isfinite(left) else f"{budget.elapsed():.0f} s")
    return ", ".join(parts)
