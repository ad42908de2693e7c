"""Define the content of a page, for reports and for stores.

Other modules of this package fill it in and render it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from felixlike._util.wording import task_title
from felixlike.report.activity import Activity
from felixlike.report.task_history import Pair
from felixlike.symbolic.program.tree import Nodes


@dataclass(frozen=True, slots=True)
class PageTask:
    """One task on one device.

    Attributes:
        name: Name of the task.
        key: Key of the task.
        calls: Call sites in the model; None if unknown.
        flops: Floating-point operations of one call.
        best: Best latency in seconds per call; nan if not measured.
        trials: Candidates measured.
        failures: Number of failed candidates, by status.
        sketch: Description of the chosen sketch.
        error: Maximum relative error of the best schedule against float64; None if unknown.
        how: Origin of the schedule, as `TaskReport.how`.
        steps: (seconds, best latency from then on).
        until: Seconds at which the curve ends.
        pairs: Predictions and measurements.
        chosen: Loops of the chosen schedule.
        untuned: Loops of the function without a schedule.
        unseen: Why `chosen` is empty.
        point: Variables of the schedule, by name.
        building: Seconds that parallel processes spent on building.
        running: Seconds that parallel processes spent on running.
        notes: Further remarks.
        layers: What each call site computes, as `TaskReport.layers`.
        spent: Seconds by step, as `TaskReport.spent`.
    """

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
    layers: tuple[str, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the layers of the task and the number of other ones, or its name."""
        return task_title(self.layers, self.name)

    @property
    def total(self) -> float:
        """Return the seconds of all calls of the task in the model; nan if unknown."""
        return math.nan if self.calls is None else self.calls * self.best


@dataclass(frozen=True, slots=True)
class Group:
    """The tasks of one device in display order. Only latencies of one device are comparable."""

    device: str
    tasks: tuple[PageTask, ...]

    def share(self, task: PageTask) -> float:
        """Return the task's share of the time of all tasks with a known time; nan if its own is unknown."""
        whole = math.fsum(total for other in self.tasks if math.isfinite(total := other.total))
        return task.total / whole if whole else math.nan


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page.

    Attributes:
        title: Name of the model or of the store.
        facts: Names and values.
        groups: Tasks by device.
        state: State of the latest run if it has not completed, or of the store, as text; else empty.
        spent: Wall-clock seconds by activity.
        activity: What the processes of the run did over time.
        notes: Sentences.
        unfinished: Whether pictures remain to be drawn.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...]
    state: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)
    activity: Activity = field(default_factory=Activity)
    notes: tuple[str, ...] = ()
    unfinished: bool = False
