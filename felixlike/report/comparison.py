"""Stores side by side: how soon each found what, task by task, device by device.

In: opened stores with their names. Out: `Comparison`, which knows its text's rows and its JSON. Times of different
devices do not compare, so each device has a group of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from felixlike._util.wording import counted
from felixlike.errors import InvalidOption
from felixlike.measure.measurement import Status
from felixlike.report.curves import QUALITIES, Series, best_known, quality, times_to

if TYPE_CHECKING:
    from felixlike.records import Record, Store

PAUSE = 300.0
"""Seconds between two measurements from which on nobody was tuning: a store may be gone on with the next day."""

LEVEL = 0.03
"""A store whose best is within this of the best known is as good as first."""


class Pace:
    """Seconds between the measurements of one device, of whatever task."""

    def __init__(self) -> None:
        self._before = math.inf

    def since(self, record: Record) -> float:
        """From the measurement before to this one, the next.  Where clocks jump, or nobody was tuning for a while, it
        is what was spent on building and running alone."""
        since, self._before = record.time - self._before, record.time
        found = record.measurement
        return since if 0 <= since <= PAUSE else found.build_seconds + found.run_seconds


@dataclass(frozen=True, slots=True)
class Side:
    """One store's measurements of one task on one device."""

    store: str
    series: Series


@dataclass(frozen=True, slots=True)
class ComparedTask:
    """key, name: the task's.  sides: one for each store that measured it, in the order in which stores were given."""

    key: str
    name: str
    sides: tuple[Side, ...]

    @property
    def known(self) -> float:
        """The best latency of all sides; inf where all failed."""
        return best_known(side.series for side in self.sides)


@dataclass(frozen=True, slots=True)
class Summary:
    """One store over the tasks of a group.  first: how many of them it is first or level at.  share: geometric mean of
    best known latency ÷ its own, tasks that it has no schedule of left out; nan for none."""

    store: str
    tasks: int
    first: int
    share: float


@dataclass(frozen=True, slots=True)
class Group:
    """One device.  stores: that measured on it.  tasks: that are compared.  alone: how many were left out, since only
    one of these stores has them."""

    device: str
    stores: tuple[str, ...]
    tasks: tuple[ComparedTask, ...]
    alone: int

    def label(self, task: ComparedTask) -> str:
        """Its name, with the beginning of its key where another task has the same."""
        alike = sum(other.name == task.name for other in self.tasks)
        return task.name if alike == 1 else f"{task.name} {task.key[:8]}"

    def summaries(self) -> tuple[Summary, ...]:
        """Each store over all tasks."""
        return tuple(self._summary(store) for store in self.stores)

    def _summary(self, store: str) -> Summary:
        shares = [
            quality(side.series.best, task.known) for task in self.tasks for side in task.sides if side.store == store
        ]
        found = [share for share in shares if share > 0]
        mean = math.exp(sum(map(math.log, found)) / len(found)) if found else math.nan
        return Summary(store, len(shares), sum(share >= 1 - LEVEL for share in shares), mean)


@dataclass(frozen=True, slots=True)
class Comparison:
    """notes: what a reader should know before he compares."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For programs: everything that tables and plots show.  Latencies and times in seconds; null where there is
        none."""
        return {"devices": [_group_json(group) for group in self.groups], "notes": list(self.notes)}


def compare(stores: Mapping[str, Store]) -> Comparison:
    """Stores by their names.

    Raises StoreError for a damaged store, InvalidOption for one without any measurement, and where several stores were
    given and no two measured one task on one device, nor any two devices differ."""
    names: dict[str, str] = {}
    by_device: dict[str, dict[str, dict[str, Series]]] = {}
    for store, opened in stores.items():
        found = _series(opened.measurements())
        if not found:
            raise InvalidOption("there is no measurement in it", where=store, remedy="tune something with it first")
        names |= {workload.task: workload.name for workload in opened.workloads()}
        for (device, task), series in found.items():
            by_device.setdefault(device, {}).setdefault(task, {})[store] = series
    groups = tuple(_group(device, tasks, names) for device, tasks in by_device.items())
    if not any(group.tasks for group in groups):
        raise InvalidOption(
            f"the stores {', '.join(stores)} have no task in common",
            where="compare",
            remedy="give stores of runs of one model, for one target, in the same space of sketches",
        )
    return Comparison(groups, tuple(_notes(groups)))


def _series(records: Iterable[Record]) -> dict[tuple[str, str], Series]:
    """(device, task) → series.  A task's seconds are those between its records and the ones before them, of whatever
    task: what was proposed and measured in between, see `Pace`."""
    elapsed: dict[tuple[str, str], list[float]] = {}
    latency: dict[tuple[str, str], list[float]] = {}
    paces: dict[str, Pace] = {}
    for record in records:
        place, found = (record.device, record.task), record.measurement
        spent = elapsed.setdefault(place, [])
        since = paces.setdefault(record.device, Pace()).since(record)
        spent.append((spent[-1] if spent else 0.0) + since)
        latency.setdefault(place, []).append(found.seconds if found.status is Status.OK else math.inf)
    return {place: Series(elapsed[place], latency[place]) for place in elapsed}


def _group(device: str, tasks: Mapping[str, Mapping[str, Series]], names: Mapping[str, str]) -> Group:
    stores = tuple(dict.fromkeys(store for sides in tasks.values() for store in sides))
    fewest = min(2, len(stores))
    compared = tuple(
        ComparedTask(key, names.get(key, key), tuple(Side(store, series) for store, series in sides.items()))
        for key, sides in tasks.items()
        if len(sides) >= fewest
    )
    return Group(device, stores, compared, len(tasks) - len(compared))


def _notes(groups: Sequence[Group]) -> list[str]:
    notes = []
    if len(groups) > 1:
        parts = "; ".join(f"{group.device}: {', '.join(group.stores)}" for group in groups)
        notes.append(f"Times of different devices do not compare, so each has a table of its own ({parts}).")
    for group in groups:
        if group.tasks and group.alone:
            what = counted(group.alone, "task")
            notes.append(f"{what} on {group.device} left out, measured in one store only.")
        elif not group.tasks:
            notes.append(f"No task on {group.device} was measured in two of {', '.join(group.stores)}.")
    return notes


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "device": group.device,
        "stores": [
            {"store": s.store, "tasks": s.tasks, "first_or_level": s.first, "share": _null(s.share)}
            for s in group.summaries()
        ],
        "tasks": [
            {
                "key": task.key,
                "name": task.name,
                "best": _null(task.known),
                "stores": [_side_json(side, task.known) for side in task.sides],
            }
            for task in group.tasks
        ],
    }


def _side_json(side: Side, known: float) -> dict[str, Any]:
    series = side.series
    return {
        "store": side.store,
        "candidates": len(series),
        "right": series.right,
        "seconds": series.seconds,
        "best": _null(series.best),
        "reached": {
            f"{share:g}": None if found is None else {"candidates": found.candidates, "seconds": found.seconds}
            for share, found in times_to(series, known, QUALITIES)
        },
        "curve": [[step.candidates, step.seconds, step.latency] for step in series.steps()],
    }


def _null(number: float) -> float | None:
    return number if math.isfinite(number) else None
