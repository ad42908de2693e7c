"""Convert a record store and its run logs to a page, also while a run is in progress.

Input: the path of a store. Output: `Page`. Measurements and log lines are read once only.
"""

from __future__ import annotations

import calendar
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from felixlike import records
from felixlike._util.wording import counted
from felixlike.measure.measurement import Status
from felixlike.records import Record, Store, WorkloadSummary
from felixlike.records.record import UKERNELS
from felixlike.report.activity import Activity
from felixlike.report.comparison import Pace
from felixlike.report.curves import Series
from felixlike.report.page.content import Group, Page, PageTask
from felixlike.report.page.logs import Logs, RunRead
from felixlike.report.page.pictures import Picture, Pictures
from felixlike.report.page.render import MOST_SHOWN
from felixlike.report.page.reports import report_facts, report_spent
from felixlike.report.task_history import Pair, thinned
from felixlike.report.validation import is_latency

_PAIRS = 256
"""Upper limit on the predictions shown per task, over all runs. Chosen by hand."""

_SILENT = 300.0
"""Seconds since the last log line after which a run may have been killed. Chosen by hand."""

_NO_SCORES = (
    "No predictions were found: the logs of runs are not beside the store, or the strategies make no predictions."
)
"""Remark on a page without predictions."""


class _TaskMeasurements:
    """The measurements of one task on one device."""

    def __init__(self) -> None:
        self.elapsed: list[float] = []
        self.latency: list[float] = []
        self.failures: Counter[str] = Counter()
        self.building = self.running = 0.0
        self.best: Record | None = None

    def add(self, record: Record, at: float) -> None:
        """Add a record. at: seconds elapsed."""
        measurement = record.measurement
        right = measurement.status is Status.OK
        timed = right and is_latency(measurement.seconds)
        self.elapsed.append(at)
        self.latency.append(measurement.seconds if timed else math.inf)
        self.building += measurement.build_seconds
        self.running += measurement.run_seconds
        if not right:
            self.failures[measurement.status.value] += 1
        elif timed and (self.best is None or measurement.seconds < self.best.measurement.seconds):
            self.best = record


class StorePage:
    """The page of one store, which can be built repeatedly.

    Args:
        path: Path of the store.
        seconds: Time limit per build for drawing schedules; None for no limit.
        name: Name of the store on the page; its path by default.
    """

    def __init__(self, path: Path, *, seconds: float | None = None, name: str = "") -> None:
        self.path = path
        self._name = name or str(path)
        self._pictures = Pictures(seconds)
        self._logs = Logs(path)
        self._reset()

    def _reset(self) -> None:
        """Forget everything that was read from the store."""
        self._measurements: dict[str, dict[str, _TaskMeasurements]] = {}
        self._pace: dict[str, Pace] = {}
        self._clock: dict[str, float] = {}
        self._read = self._timings = 0
        self._last: Record | None = None

    def build(self) -> Page:
        """Build the page from the current content of the store.

        Raises:
            StoreError: The store cannot be read.
        """
        runs = self._logs.update()
        self._pictures.begin()
        with records.open(self.path, read_only=True) as store:
            if store.count() < self._read:  # the file was replaced
                self._reset()
            for record in store.measurements(after=self._read):
                self._read += 1
                if record.sketch == UKERNELS:
                    self._timings += 1
                else:
                    self._take(record)
            known = {workload.task: workload for workload in store.summary()}
            groups, unfinished = self._groups(store, known, runs)
        return Page(
            title=self._name,
            facts=self._facts(len(known), runs),
            groups=groups,
            state=_state(runs),
            spent=_spent(runs),
            activity=runs[-1].report.activity if runs and runs[-1].report is not None else Activity(),
            notes=self._notes(groups),
            unfinished=unfinished,
        )

    def _take(self, record: Record) -> None:
        """Add a record to the measurements of its task."""
        device = record.device
        pace = self._pace.setdefault(device, Pace())
        self._clock[device] = self._clock.get(device, 0.0) + pace.since(record)
        measurements = self._measurements.setdefault(device, {}).setdefault(record.task, _TaskMeasurements())
        measurements.add(record, self._clock[device])
        self._last = record

    def _groups(
        self, store: Store, known: dict[str, WorkloadSummary], runs: Sequence[RunRead]
    ) -> tuple[tuple[Group, ...], bool]:
        """Return the groups, and whether pictures remain to be drawn."""
        calls = {key: count for run in runs for key, count in run.calls().items()}
        groups, unfinished = [], False
        for device, tasks in self._measurements.items():
            single_device = len(self._measurements) == 1
            pairs = _pairs([run for run in runs if single_device or run.text("device") == device])
            order = sorted(tasks, key=lambda key: -_total(tasks[key], calls.get(key)))
            page_tasks = []
            for place, key in enumerate(key for key in order if key in known):
                measurements = tasks[key]
                picture = Picture()
                if place < MOST_SHOWN and measurements.best is not None:
                    picture = self._pictures.of(store, measurements.best)
                    unfinished |= picture.later
                page_tasks.append(
                    _task(known[key], measurements, calls.get(key), pairs.get(key, ()), picture, self._clock[device]),
                )
            groups.append(Group(device, tuple(page_tasks)))
        return tuple(groups), unfinished

    def _facts(self, workloads: int, runs: Sequence[RunRead]) -> tuple[tuple[str, str], ...]:
        """Return the facts about the store and its latest run."""
        right = sum(
            len(t.latency) - t.failures.total() for tasks in self._measurements.values() for t in tasks.values()
        )
        schedules = self._read - self._timings
        facts = [("Measurements", f"{schedules}, {right} of them valid, of {counted(workloads, 'workload')}")]
        if self._timings:
            facts.append(("Kernels for dynamic sizes", counted(self._timings, "measurement")))
        if runs:
            facts.append(("Runs", f"{counted(len(runs), 'log')}; the latest is {runs[-1].path.name}"))
            facts += _run_facts(runs[-1])
        elif self._last is not None:
            last = self._last
            facts += [("Devices", ", ".join(self._measurements)), ("Target", last.target), ("Seed", str(last.seed))]
            facts.append(("Versions", f"felixlike {last.felixlike or 'none'}, apache-tvm {last.tvm}"))
        return tuple(facts)

    def _notes(self, groups: Sequence[Group]) -> tuple[str, ...]:
        """Return remarks on what the store does not tell."""
        notes = []
        if len(groups) > 1:
            notes.append("Times of different devices are not comparable, so each device has its own table.")
        tasks = [task for group in groups for task in group.tasks]
        if tasks and all(task.calls is None for task in tasks):
            notes.append(
                "The number of calls per task is unknown because no run log contains it, so shares are not shown."
            )
        if tasks and not any(task.pairs for task in tasks):
            notes.append(_NO_SCORES)
        return tuple(notes)


def _task(
    known: WorkloadSummary,
    measurements: _TaskMeasurements,
    calls: float | None,
    pairs: tuple[Pair, ...],
    picture: Picture,
    until: float,
) -> PageTask:
    """Convert the measurements of a task."""
    best = measurements.best
    return PageTask(
        name=known.name,
        key=known.task,
        calls=calls,
        flops=known.flops,
        best=math.nan if best is None else best.measurement.seconds,
        trials=len(measurements.latency),
        failures=measurements.failures,
        sketch="" if best is None else best.sketch[:8],
        error=None if best is None else best.measurement.error,
        how="" if best is None else "measured",
        steps=tuple(
            (step.seconds, step.latency) for step in Series(measurements.elapsed, measurements.latency).steps()
        ),
        until=until,
        pairs=pairs,
        chosen=picture.chosen,
        untuned=picture.untuned,
        unseen=picture.words if best is not None else "No candidate was valid so far.",
        building=measurements.building,
        running=measurements.running,
    )


def _total(measurements: _TaskMeasurements, calls: float | None) -> float:
    """Return the seconds of all calls; 0 if unknown, so that such tasks come last."""
    return 0.0 if calls is None or measurements.best is None else calls * measurements.best.measurement.seconds


def _pairs(runs: Sequence[RunRead]) -> dict[str, tuple[Pair, ...]]:
    """Return the predictions and measurements of each task over all runs, by its key."""
    keys = dict.fromkeys(key for run in runs for key in run.predicted)
    pairs = {}
    for key in keys:
        scores = [s for run in runs for s in run.predicted.get(key, ([], []))[0]]
        latencies = [t for run in runs for t in run.predicted.get(key, ([], []))[1]]
        pairs[key] = thinned(scores, latencies, _PAIRS)
    return pairs


def _run_facts(run: RunRead) -> list[tuple[str, str]]:
    """Return facts about the latest run."""
    if run.report is not None:
        return [("Model", run.report.model), *report_facts(run.report)]
    facts = [(name.capitalize(), run.text(name)) for name in ("model", "device", "target") if run.text(name)]
    facts.append(("Tuning", f"{counted(run.trials, 'candidate')} in {run.seconds:.0f} s"))
    budget = run.start.get("budget")
    if isinstance(budget, dict):
        limits = ", ".join(f"{value} {name}" for name, value in budget.items() if value is not None)
        facts.append(("Limits", limits or "none"))
    facts.append(("Seed", str(run.start.get("seed", "unknown"))))
    versions = run.start.get("versions")
    if isinstance(versions, dict):
        facts.append(("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return facts


def _state(runs: Sequence[RunRead]) -> str:
    """Return the state of the latest run as text; empty if it has completed or there is no log."""
    if not runs or runs[-1].report is not None:
        return ""
    run = runs[-1]
    if run.error:
        return f"The latest run ended with an error at {run.time}: {run.error}"
    if not run.time:
        return "A run has started."
    age = 0.0
    with suppress(ValueError):
        age = time.time() - calendar.timegm(time.strptime(run.time, "%Y-%m-%dT%H:%M:%SZ"))
    if age > _SILENT:
        return (
            f"The log of the latest run has no end; its last line is from {run.time}. The run was killed or is waiting."
        )
    return f"A run is in progress; its last event was at {run.time}."


def _spent(runs: Sequence[RunRead]) -> dict[str, float]:
    """Return the latest run's seconds by step, as far as its log goes."""
    if not runs:
        return {}
    run = runs[-1]
    if run.report is not None:
        return report_spent(run.report)
    return {"importing": run.importing, "tuning": max(0.0, run.seconds - run.importing)} if run.start else {}
