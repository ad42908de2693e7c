"""Count every second of a run once: by what it was spent on, by task, and by what its processes did meanwhile.

Inputs: the begin and end of steps, and of the work of other processes. Outputs: `Spent.seconds`, `Spent.tasks` and
`Spent.timeline`. Steps are entered anywhere in the code with `on`, which counts for the clock that runs in the calling
thread, and does nothing without one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

BUILDING, CHECKING, TIMING = "building", "checking", "timing candidates"
"""Steps in which a run waits for its measuring processes."""

HERE = "this process"
"""Row of a timeline with the work of the run's own process."""

REST = "else"
"""Step of the seconds outside of all others."""

_BINS = 64
"""Number of bins of a timeline from which on two become one, chosen by hand: a picture of a few hundred pixels."""
_WIDTH = 0.05
"""Seconds of a bin at first."""


class Timeline:
    """Seconds of work per interval of time, by what worked. The number of intervals is bounded.

    Attributes:
        width: Seconds of each interval.
        rows: Seconds of work in each interval, by `HERE` and by what processes did.
    """

    def __init__(self) -> None:
        self.width = _WIDTH
        self.rows: dict[str, list[float]] = {}

    def add(self, row: str, begin: float, end: float) -> None:
        """Add work from `begin` to `end`, in seconds since the start."""
        while end >= self.width * _BINS:
            self.width *= 2
            for name, bins in self.rows.items():
                even = [*bins, 0.0] if len(bins) % 2 else bins
                self.rows[name] = [a + b for a, b in zip(even[::2], even[1::2], strict=True)]
        bins = self.rows.setdefault(row, [])
        first, last = int(max(begin, 0.0) / self.width), int(end / self.width)
        bins += [0.0] * (last + 1 - len(bins))
        for index in range(first, last + 1):
            bins[index] += max(0.0, min(end, (index + 1) * self.width) - max(begin, index * self.width))


class Spent:
    """Wall-clock seconds per step of one thread. The time of a nested step counts for the inner step only.

    Args:
        started: Start of the run, by `time.monotonic`; None for now.

    Attributes:
        seconds: Seconds by step.
        tasks: Seconds by the key of a task and by step.
        timeline: What this process and the measuring processes did, and when.
    """

    def __init__(self, started: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.tasks: dict[str, dict[str, float]] = {}
        self.timeline = Timeline()
        self._started = self._since = time.monotonic() if started is None else started
        self._steps = [REST]
        self._task = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make this the clock of `on`, `on_task` and `worked` in the calling thread."""
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)

    @contextlib.contextmanager
    def on(self, step: str) -> Iterator[None]:
        """Add the time of the block to a step."""
        self.update()
        self._steps.append(step)
        try:
            yield
        finally:
            self.update()
            self._steps.pop()

    @contextlib.contextmanager
    def on_task(self, key: str) -> Iterator[None]:
        """Add the time of the block to a task, too."""
        self.update()
        before, self._task = self._task, key
        try:
            yield
        finally:
            self.update()
            self._task = before

    def update(self) -> None:
        """Add the time until now to the current step."""
        now = time.monotonic()
        step, taken = self._steps[-1], now - self._since
        self._add(step, taken)
        if step not in (BUILDING, CHECKING, TIMING):
            self.timeline.add(HERE, self._since - self._started, now - self._started)
        self._since = now

    def worked(self, step: str, seconds: float, timed: float = 0.0) -> None:
        """Add the work of another process that ends now, the last `timed` seconds of which were timing.

        As much of the wait for it counts as timing, too.
        """
        end = time.monotonic() - self._started
        self.timeline.add(step, end - seconds, end - timed)
        if timed > 0:
            self.timeline.add(TIMING, end - timed, end)
            self.update()
            task = self.tasks.get(self._task, {})
            moved = min(timed, self.seconds.get(step, 0.0), task.get(step, 0.0) if self._task else timed)
            self._add(step, -moved)
            self._add(TIMING, moved)

    def _add(self, step: str, seconds: float) -> None:
        """Add seconds to a step, and to the current task's."""
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds
        if self._task:
            task = self.tasks.setdefault(self._task, {})
            task[step] = task.get(step, 0.0) + seconds


_running: ContextVar[Spent | None] = ContextVar("spent", default=None)
"""The clock that runs in this thread."""


def clock() -> Spent | None:
    """Return the clock that runs in the calling thread; None without one."""
    return _running.get()


@contextlib.contextmanager
def on(step: str) -> Iterator[None]:
    """Add the time of the block to a step of the running clock; also a decorator."""
    spent = _running.get()
    with contextlib.nullcontext() if spent is None else spent.on(step):
        yield


@contextlib.contextmanager
def on_task(key: str) -> Iterator[None]:
    """Add the time of the block to a task of the running clock, too."""
    spent = _running.get()
    with contextlib.nullcontext() if spent is None else spent.on_task(key):
        yield


def worked(step: str, seconds: float, timed: float = 0.0) -> None:
    """Add the work of another process to the running clock; see `Spent.worked`."""
    spent = _running.get()
    if spent is not None:
        spent.worked(step, seconds, timed)
