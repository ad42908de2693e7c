"""Between a store and a folder with MetaSchedule's JSON database.

In: a store, a folder. Out: what was written or taken over, and what was passed over and why. The files are two lists of
lines: database_workload.json, [hash, module], and database_tuning_record.json, [number of the workload, [trace,
seconds, target, arguments]]. MetaSchedule refuses a database whose last line is torn; here damaged lines are counted
and passed over.
"""

import base64
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike.errors import FelixlikeError, InvalidPoint, InvalidSchedule, StoreError, first_line
from felixlike.frontend import Task, make_task
from felixlike.frontend.constants import CONSTANTS, LAYOUT_FREE, noted_constants
from felixlike.hardware import device_name, resolve_target
from felixlike.measure import Measurement, Status
from felixlike.measure.outcome import measurement
from felixlike.records.record import Record
from felixlike.records.store import Store, StoredWorkload
from felixlike.symbolic import Sketch, sketches

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
"""The files of a database, as MetaSchedule names them."""

_FAILED = 1e9
"""Seconds from which MetaSchedule means a failure: it writes 1e10."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """records: how many were written or new.  known: how many were there already.  workloads: of how many workloads.
    passed_over: how many were not taken, by reason."""

    records: int
    known: int
    workloads: int
    passed_over: Mapping[str, int] = field(default_factory=dict)


def export_database(
    store: Store, folder: "str | os.PathLike[str]", *, target: Any = "cpu", device: str | None = None, best: int = 0
) -> Exchanged:
    """Write a store's right measurements of one target and device as a database, which
    relax.transform.MetaScheduleApplyDatabase takes.

    MetaSchedule does not tell targets apart, so a folder holds one. target: a name or a TVM target. device: its name,
    None for this machine's. best: only so many of each workload, the fastest; 0 for all. Each workload is written in
    every form in which MetaSchedule may look it up. Schedules of functions with constant weights pack these: after
    MetaScheduleApplyDatabase come SplitLayoutRewritePreproc and FoldConstant, or every call packs them.
    Raises StoreError if the folder holds a database already or cannot be written, UnknownTarget."""
    place = _place(store, folder)
    best = option_checks.whole(best, "best", where="export", otherwise="0 for all")
    _refuse_used(place)
    target = resolve_target(target)
    where = device_name(target) if device is None else _device(device)
    passed_over: Counter[str] = Counter()
    written = workloads = 0
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as unfinished:
            database = _tvm.ms.database.JSONDatabase(work_dir=unfinished, module_equality="structural")
            for workload in store.workloads():
                if workload.target != str(target):
                    passed_over["of another target"] += 1
                    continue
                count = _export_workload(store, workload, target, where, best, database, passed_over)
                written, workloads = written + count, workloads + (count > 0)
            for name in (WORKLOADS, RECORDS):
                (Path(unfinished) / name).touch()
                os.replace(Path(unfinished) / name, place / name)
    except OSError as error:
        if isinstance(error, FelixlikeError):
            raise
        raise StoreError(str(error), where=str(place), remedy="see that the folder can be written") from error
    return Exchanged(written, 0, workloads, passed_over)


def import_database(
    store: Store, folder: "str | os.PathLike[str]", *, target: Any = "cpu", device: str | None = None
) -> Exchanged:
    """Add what MetaSchedule has measured: `optimize` with this store then knows these schedules.

    target: whose records are taken, a name or a TVM target; `optimize` must be asked for the same. device: where they
    were measured, since the database does not say; None for this machine. MetaSchedule checks no answers: such a
    schedule is checked before it is chosen. Budgets do not count them. Raises StoreError if there is no database or
    the store cannot be written, UnknownTarget."""
    place = _place(store, folder)
    target = resolve_target(target)
    where = device_name(target) if device is None else _device(device)
    passed_over: Counter[str] = Counter()
    database = _Database(place, target, passed_over)
    found: dict[tuple[str, str], list[Record]] = {}
    for line in _lines(place / RECORDS, passed_over):
        try:
            record = database.record(line, where)
        except _PassedOver as reason:
            passed_over[str(reason)] += 1
            continue
        found.setdefault((record.task, record.sketch), []).append(record)
    before = store.count()
    for (task, sketch), records in found.items():
        store.extend(database.known[task], records, database.sketches[task][sketch])
    new = store.count() - before
    return Exchanged(new, sum(map(len, found.values())) - new, len({task for task, _ in found}), passed_over)


def _main(line: Any) -> Any:
    """The function of a workload's line: the module's hash, and its JSON after eight bytes of its length, in base64.

    MetaSchedule's own reader builds whatever the JSON asks for. Raises _tvm.NotAllowed, or TVM's errors."""
    try:
        recorded, encoded = line
        text = base64.b64decode(encoded, validate=True)[8:].decode()
    except (ValueError, TypeError) as error:
        raise _tvm.NotAllowed(f"it is not a workload: {first_line(error)}") from None
    module = _tvm.load_function(text)
    if str(_tvm.ms.database.Workload(module).as_json()[0]) != recorded:
        raise _tvm.NotAllowed("its hash is another one")
    return module["main"]


class _PassedOver(Exception):
    """Why a record is not taken."""


class _Database:
    """A database that is being read.  known: tasks by key.  sketches: of each of them, by key."""

    def __init__(self, place: Path, target: Any, passed_over: Counter[str]) -> None:
        self.known: dict[str, Task] = {}
        self.sketches: dict[str, dict[str, Sketch]] = {}
        self._target = target
        self._targets: dict[str, bool] = {}
        self._lines: list[Any] = list(_lines(place / WORKLOADS, passed_over, keep=True))
        self._tasks: dict[int, Task | str] = {}

    def record(self, line: Any, device: str) -> Record:
        """The record of a line. Raises _PassedOver with the reason."""
        try:
            number, (trace, seconds, target, *_) = line
        except (ValueError, TypeError) as error:
            raise _PassedOver("damaged lines") from error
        if not self._fits(target):
            raise _PassedOver("of another target")
        if seconds is None:
            raise _PassedOver("without a measurement")
        task = self._task(number)
        sketch, point = self._point(task, trace)
        return Record(
            task=task.key,
            sketch=sketch.key,
            point=point,
            measurement=_measurement(seconds),
            device=device,
            target=str(self._target),
            tvm="",  # the database says neither the version nor the day, and its records are to be known again
            felixlike="",
            seed=0,
            time=0.0,
        )

    def _fits(self, target: Any) -> bool:
        """Whether a record's target is ours, as far as code depends on it. Raises _PassedOver for what is none."""
        text = json.dumps(target)
        if text not in self._targets:
            try:
                theirs = self._target if target is None else _tvm.Target(target)
            except _tvm.TVM_ERRORS as error:
                if not _tvm.raised_in_tvm(error):
                    raise
                raise _PassedOver("damaged lines") from error
            said = [(t.kind.name, *map(t.attrs.get, _DECISIVE)) for t in (theirs, self._target)]
            self._targets[text] = str(said[0]) == str(said[1])
        return self._targets[text]

    def _task(self, number: Any) -> Task:
        if not isinstance(number, int) or not 0 <= number < len(self._lines) or self._lines[number] is None:
            raise _PassedOver("of a workload that is damaged or missing")
        if number not in self._tasks:
            try:
                main = _main(self._lines[number])
                task = make_task(main, self._target, name=f"workload {number}", constants=noted_constants(main))
                if task.key not in self.known:
                    self.sketches[task.key] = {s.key: s for s in sketches(task, space="all")}
                    self.known[task.key] = task
                self._tasks[number] = task
            except (*_tvm.TVM_ERRORS, FelixlikeError) as error:
                if not isinstance(error, FelixlikeError | _tvm.NotAllowed) and not _tvm.refusal(error):
                    raise
                self._tasks[number] = first_line(error)
        found = self._tasks[number]
        if isinstance(found, str):
            raise _PassedOver("of a workload that TVM cannot read")
        return self.known[found.key]

    def _point(self, task: Task, trace: Any) -> tuple[Sketch, tuple[int, ...]]:
        for sketch in self.sketches[task.key].values():
            try:
                point = sketch.traced_point(trace)
            except (InvalidPoint, IndexError, TypeError, ValueError, KeyError) as error:
                raise _PassedOver("damaged lines") from error
            if point is not None:
                if not sketch.in_range(point):
                    raise _PassedOver("damaged lines")
                return sketch, point
        raise _PassedOver("of a sketch that is not among ours")


_DECISIVE = ("mcpu", "num-cores", "arch")
"""What of a target times and schedules depend on, beside its kind."""


def _measurement(seconds: Any) -> Measurement:
    """What a record says, its seconds as if we had measured the same repeats. Raises _PassedOver."""
    try:
        repeats = tuple(float(s) for s in seconds)
    except (TypeError, ValueError) as error:
        raise _PassedOver("damaged lines") from error
    if not repeats or max(repeats) >= _FAILED:
        return Measurement(Status.RUN_ERROR, message="MetaSchedule could not build or run it; it does not say why")
    if not all(math.isfinite(s) and s > 0 for s in repeats):
        raise _PassedOver("damaged lines")
    return measurement({"status": Status.OK, "repeats": repeats}, build_seconds=0.0, run_seconds=0.0)


def _lines(path: Path, passed_over: Counter[str], *, keep: bool = False) -> Iterator[Any]:
    """The JSON of each line; damaged ones are counted, and left out or, to keep numbers right, None."""
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    passed_over["damaged lines"] += 1
                    if keep:
                        yield None
    except OSError as error:
        raise StoreError(
            f"there is no {path.name} that can be read", where=str(path.parent), remedy="check the folder's name"
        ) from error


def _place(store: Any, folder: Any) -> Path:
    option_checks.of_kind(store, Store, "store", where="MetaSchedule", remedy="give what records.open returns")
    return option_checks.path(folder, "folder", error=StoreError)


def _device(name: Any) -> str:
    return option_checks.text(
        name, "device", remedy="give the name of a device, as in Record.device, or None for this one"
    )


def _refuse_used(place: Path) -> None:
    if any((place / name).exists() for name in (WORKLOADS, RECORDS)):
        raise StoreError("there is a database already", where=str(place), remedy="name another folder")
    if place.exists() and not place.is_dir():
        raise StoreError("it is a file", where=str(place), remedy="name a folder, which is made if there is none")


def _export_workload(
    store: Store,
    workload: StoredWorkload,
    target: Any,
    device: str,
    best: int,
    database: Any,
    passed_over: Counter[str],
) -> int:
    """Write one workload's records; how many."""
    records = store.fastest(workload.task, best or None, device=device)
    if not records:
        return 0
    try:
        main = _tvm.load_function(workload.module)["main"] if workload.module else None
    except _tvm.NotAllowed:
        main = None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        main = None
    if main is None:
        passed_over["of a workload that was lost"] += len(records)
        return 0
    task = make_task(main, target, name=workload.name, constants=noted_constants(main))
    by_key = {sketch.key: sketch for sketch in sketches(task, space="all")}
    arguments = _tvm.ms.arg_info.ArgInfo.from_entry_func(task.module)
    forms = [database.commit_workload(module) for module in _forms(task.module)]
    written = 0
    for record in records:
        sketch = by_key.get(record.sketch)
        try:
            trace = None if sketch is None else sketch.schedule(record.point).trace
        except (InvalidSchedule, InvalidPoint):
            trace = None
        if trace is None:
            passed_over["that this TVM does not schedule"] += 1
            continue
        found = record.measurement
        for form in forms:
            seconds = list(found.repeats) or [found.seconds]
            database.commit_tuning_record(_tvm.ms.database.TuningRecord(trace, form, seconds, target, arguments))
        written += 1
    return written


def _forms(module: Any) -> list[Any]:
    """The module as MetaSchedule may look it up.

    Functions that were not fused are marked as such. Free layouts are those of our own modules; or, where
    AttachAttrLayoutFreeBuffers has marked the functions of a model, all constants, and an empty list without any."""
    main = _tvm.without_attributes(module["main"], CONSTANTS)
    theirs = main.with_attr(LAYOUT_FREE, list(noted_constants(module["main"])))
    found: list[Any] = []
    for func in (main, theirs):
        plain = _tvm.IRModule({"main": func})
        for form in (plain, _tvm.relax.transform.AnnotateTIROpPattern()(plain)):
            if not any(_tvm.structural_equal(form, other) for other in found):
                found.append(form)
    return found
