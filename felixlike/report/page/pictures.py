"""Draw the loops of schedules from a record store.

Inputs: a store, a record. Output: the loops of the record's schedule and of the function without a schedule. They are
created by TVM, which is loaded on first use. Pictures are cached. A time limit bounds how many are drawn per build of a
page.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from felixlike.errors import first_line
from felixlike.frontend.task import Task
from felixlike.records import Record, Store, StoredWorkload
from felixlike.symbolic import Sketch, stored_sketch
from felixlike.symbolic.program.tree import Nodes, loop_tree
from felixlike.training.samples import restored


@dataclass(frozen=True, slots=True)
class Picture:
    """The loops of one schedule.

    Attributes:
        chosen: Loops of the schedule.
        untuned: Loops of the function without a schedule.
        words: Why `chosen` is empty.
        later: Whether the picture will be drawn later.
    """

    chosen: Nodes = ()
    untuned: Nodes = ()
    words: str = ""
    later: bool = False


class Pictures:
    """Draw and cache the pictures of one store. seconds: time limit per build of a page; None for no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._until = 0.0
        self._drawn: dict[tuple[str, str, tuple[int, ...]], Picture] = {}
        self._workloads: dict[str, StoredWorkload] | None = None
        self._traces: dict[tuple[str, str], str] | None = None
        self._tasks: dict[str, Task | None] = {}
        self._sketches: dict[tuple[str, str], Sketch | None] = {}

    def begin(self) -> None:
        """Start the time limit of a build, and forget the list of workloads, since the store may have new tasks."""
        self._workloads = self._traces = None
        self._until = time.monotonic() + (self._seconds or 0.0)

    def of(self, store: Store, record: Record) -> Picture:
        """Return a record's picture."""
        place = (record.task, record.sketch, record.point)
        if place not in self._drawn:
            if self._seconds is not None and time.monotonic() > self._until:
                return Picture(words="It will be drawn in the next update.", later=True)
            try:
                self._drawn[place] = self._draw(store, record)
            except Exception as error:  # the page is built without this picture
                self._drawn[place] = Picture(words=f"Its loops cannot be drawn: {first_line(error)}")
        return self._drawn[place]

    def _draw(self, store: Store, record: Record) -> Picture:
        """Draw a record's picture."""
        task = self._task(store, record.task)
        if task is None:
            return Picture(words="Its loops cannot be drawn: the function is not in the store, or TVM cannot read it.")
        untuned = loop_tree(task.module["main"].body)
        sketch = self._sketch(store, task, record.sketch)
        if sketch is None:
            words = "The loops of its schedule cannot be drawn: the store does not contain its trace."
            return Picture(untuned=untuned, words=words)
        return Picture(loop_tree(sketch.schedule(record.point).mod["main"].body), untuned)

    def _task(self, store: Store, key: str) -> Task | None:
        """Return the task of a key, restored from the store; None if that is not possible."""
        if key not in self._tasks:
            if self._workloads is None:
                self._workloads = {workload.task: workload for workload in store.workloads()}
            stored = self._workloads[key]
            self._tasks[key] = restored(stored) if stored.module else None
        return self._tasks[key]

    def _sketch(self, store: Store, task: Task, key: str) -> Sketch | None:
        """Return the sketch of a key, from its stored trace; None if that is not possible."""
        place = (task.key, key)
        if place not in self._sketches:
            if self._traces is None:
                self._traces = {(of, sketch): text for of, sketch, text in store.values("sketches")}
            trace = self._traces.get(place)
            self._sketches[place] = None if trace is None else stored_sketch(task, trace)
        return self._sketches[place]
