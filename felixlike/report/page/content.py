"""What a page says, whether a report or a store tells it.

In: nothing; the other files of this folder fill it in, and draw it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from felixlike.report.task_history import Pair
from felixlike.symbolic.program.tree import Nodes


@dataclass(frozen=True, slots=True)
class PageTask:
    """One task on one device.

    name, key: the task's.  calls: call sites in the model, None where not known.  flops: of a call.  best: seconds of a
    call, nan where not measured.  trials: candidates measured.  failures: how many of them were not right, by status.
    sketch: which one, in words.  error: of the best one against float64, None where it could not be had.  how: where
    the schedule comes from.  steps: (seconds, best from then on).  until: seconds at which the curve ends.  pairs:
    predicted and measured.  chosen, untuned: loops; unseen: why chosen is empty.  point: the schedule's variables.
    building, running: seconds of processes side by side.  notes: what else is to be known."""

    name: str
    key: str
    calls: float | None
    flops: float
    best: float
    trials: int
    failures: Mapping[str, int]
    sketch: str
    error: float | None
    how: str
    steps: tuple[tuple[float, float], ...] = ()
    until: float = 0.0
    pairs: tuple[Pair, ...] = ()
    chosen: Nodes = ()
    untuned: Nodes = ()
    unseen: str = ""
    point: Mapping[str, int] = field(default_factory=dict)
    building: float = 0.0
    running: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Seconds of all its calls, nan where not known."""
        return math.nan if self.calls is None else self.calls * self.best


@dataclass(frozen=True, slots=True)
class Group:
    """The tasks of one device, whose times compare, in the order in which they are shown."""

    device: str
    tasks: tuple[PageTask, ...]

    def share(self, task: PageTask) -> float:
        """Of the time of all tasks that have one; nan where it has none."""
        whole = math.fsum(total for other in self.tasks if math.isfinite(total := other.total))
        return task.total / whole if whole else math.nan


@dataclass(frozen=True, slots=True)
class Page:
    """title: what it is about.  state: what goes on, in words; empty where all is over.  facts: names and values.
    spent: seconds of the clock by what they were spent on.  notes: sentences.  unfinished: whether pictures are still
    to be drawn."""

    title: str
    facts: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...]
    state: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unfinished: bool = False
