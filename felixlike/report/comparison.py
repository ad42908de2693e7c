"""Compare record stores task by task and device by device: the best latency, and how soon it was found.

Inputs: open stores by name. Output: `Comparison`, with its JSON. Latencies of different devices are not comparable, so
each device has its own group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from felixlike._util.wording import counted
from felixlike.errors import InvalidOption
from felixlike.measure.measurement import Status
from felixlike.records.record import UKERNELS
from felixlike.report.curves import QUALITIES, Series, best_known, quality, times_to

if TYPE_CHECKING:
    from felixlike.records import Record, Store

PAUSE = 300.0
"""Longest pause between two measurements of one run, in seconds. A store may be continued the next day."""

LEVEL = 0.03
"""Tolerance of first place: a store counts as first within this share of the best known performance."""


class Pace:
    """Compute the seconds between successive measurements on one device, over all tasks."""

    def __init__(self) -> None:
        self._before = math.inf

    def since(self, record: Record) -> float:
        """Return the seconds from the previous measurement to this one.

        For the first measurement, after a jump of the clock, or after more than `PAUSE` seconds, return the seconds of
        building and running instead.
        """
        since, self._before = record.time - self._before, record.time
        measurement = record.measurement
        return since if 0 <= since <= PAUSE else measurement.build_seconds + measurement.run_seconds


@dataclass(frozen=True, slots=True)
class Side:
    """One store's measurements of one task on one device."""

    store: str
    series: Series


@dataclass(frozen=True, slots=True)
class ComparedTask:
    """One task in a comparison.

    Attributes:
        key: Key of the task.
        name: Name of the task.
        sides: One entry per store that measured the task, in the order in which the stores were given.
    """

    key: str
    name: str
    sides: tuple[Side, ...]

    @property
    def known(self) -> float:
        """Return the best latency of all sides in seconds; inf if all failed."""
        return best_known(side.series for side in self.sides)


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one store over the tasks of a group.

    Attributes:
        store: Name of the store.
        tasks: Number of tasks that the store measured.
        first: Number of tasks for which the store is best or within `LEVEL` of the best.
        share: Geometric mean of best known latency ÷ the store's latency, over tasks with a valid schedule; nan without
            any.
    """

    store: str
    tasks: int
    first: int
    share: float


@dataclass(frozen=True, slots=True)
class Group:
    """The tasks compared on one device.

    Attributes:
        device: Name of the device.
        stores: Stores with measurements on the device.
        tasks: Compared tasks.
        alone: Number of omitted tasks, which only one of the stores has.
    """

    device: str
    stores: tuple[str, ...]
    tasks: tuple[ComparedTask, ...]
    alone: int

    def label(self, task: ComparedTask) -> str:
        """Return the task's name, followed by the start of its key if another task has the same name."""
        alike = sum(other.name == task.name for other in self.tasks)
        return task.name if alike == 1 else f"{task.name} {task.key[:8]}"

    def summaries(self) -> tuple[Summary, ...]:
        """Return a summary of each store over all tasks."""
        return tuple(self._summary(store) for store in self.stores)

    def _summary(self, store: str) -> Summary:
        """Return the summary of one store."""
        shares = [
            quality(side.series.best, task.known) for task in self.tasks for side in task.sides if side.store == store
        ]
        positive = [share for share in shares if share > 0]
        mean = math.exp(sum(map(math.log, positive)) / len(positive)) if positive else math.nan
        return Summary(store, len(shares), sum(share >= 1 - LEVEL for share in shares), mean)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of several stores.

    Attributes:
        groups: One group per device.
        notes: Remarks for the reader.
    """

    groups: tuple[Group, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything that tables and plots show, as plain data for JSON.

        Latencies and times are in seconds. Missing numbers are None.
        """
        return {"devices": [_group_json(group) for group in self.groups], "notes": list(self.notes)}


def compare(stores: Mapping[str, Store]) -> Comparison:
    """Compare stores.

    Args:
        stores: Open stores by name.

    Raises:
        StoreError: A store is damaged.
        InvalidOption: A store has no measurement, or the stores have no task in common on any device.
    """
    names: dict[str, str] = {}
    by_device: dict[str, dict[str, dict[str, Series]]] = {}
    for store, opened in stores.items():
        series_by_task = _series(opened.measurements())
        if not series_by_task:
            raise InvalidOption("it contains no measurements", where=store, remedy="tune a model with it first")
        names |= {workload.task: workload.name for workload in opened.workloads()}
        for (device, task), series in series_by_task.items():
            by_device.setdefault(device, {}).setdefault(task, {})[store] = series
    groups = tuple(_group(device, tasks, names) for device, tasks in by_device.items())
    if not any(group.tasks for group in groups):
        raise InvalidOption(
            f"the stores {', '.join(stores)} have no task in common",
            where="compare",
            remedy="give stores of runs of the same model, target and design space",
        )
    return Comparison(groups, tuple(_notes(groups)))


def _series(records: Iterable[Record]) -> dict[tuple[str, str], Series]:
    """Return the series of measurements by (device, task).

    The elapsed seconds of a task are the sum of the times before its records, see `Pace`. Each starts at the device's
    previous record of any task, so it includes proposing and measuring.
    """
    elapsed: dict[tuple[str, str], list[float]] = {}
    latency: dict[tuple[str, str], list[float]] = {}
    paces: dict[str, Pace] = {}
    for record in records:
        if record.sketch == UKERNELS:
            continue
        place, measurement = (record.device, record.task), record.measurement
        spent = elapsed.setdefault(place, [])
        since = paces.setdefault(record.device, Pace()).since(record)
        spent.append((spent[-1] if spent else 0.0) + since)
        latency.setdefault(place, []).append(measurement.seconds if measurement.status is Status.OK else math.inf)
    return {place: Series(elapsed[place], latency[place]) for place in elapsed}


def _group(device: str, tasks: Mapping[str, Mapping[str, Series]], names: Mapping[str, str]) -> Group:
    """Return the comparison on one device. Omit tasks that only one of several stores has."""
    stores = tuple(dict.fromkeys(store for sides in tasks.values() for store in sides))
    fewest = min(2, len(stores))
    compared = tuple(
        ComparedTask(key, names.get(key, key), tuple(Side(store, series) for store, series in sides.items()))
        for key, sides in tasks.items()
        if len(sides) >= fewest
    )
    return Group(device, stores, compared, len(tasks) - len(compared))


def _notes(groups: Sequence[Group]) -> list[str]:
    """Return remarks on several devices and on omitted tasks."""
    notes = []
    if len(groups) > 1:
        parts = "; ".join(f"{group.device}: {', '.join(group.stores)}" for group in groups)
        notes.append(f"Times of different devices are not comparable, so each device has its own table ({parts}).")
    for group in groups:
        if group.tasks and group.alone:
            what = counted(group.alone, "task")
            notes.append(f"{what} on {group.device} omitted: measured in one store only.")
        elif not group.tasks:
            notes.append(f"No task on {group.device} was measured in two of {', '.join(group.stores)}.")
    return notes


def _group_json(group: Group) -> dict[str, Any]:
    """Return a group as plain data."""
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
    """Return one store's series of a task as plain data."""
    series = side.series
    return {
        "store": side.store,
        "candidates": len(series),
        "right": series.right,
        "seconds": series.seconds,
        "best": _null(series.best),
        "reached": {
            f"{share:g}": None if reached is None else {"candidates": reached.candidates, "seconds": reached.seconds}
            for share, reached in times_to(series, known, QUALITIES)
        },
        "curve": [[step.candidates, step.seconds, step.latency] for step in series.steps()],
    }


def _null(number: float) -> float | None:
    """Return the number, or None if it is not finite."""
    return number if math.isfinite(number) else None
