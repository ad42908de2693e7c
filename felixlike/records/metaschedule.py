"""Export a record store to MetaSchedule's JSON database, and import such a database.

The input is a store and a folder. The output is the number of exported or imported records, and of those that were
skipped, by reason. Each file has one JSON value a line: [hash, module] in database_workload.json, and [number of the
workload, [trace, seconds, target, arguments]] in database_tuning_record.json. MetaSchedule rejects a database whose
last line is incomplete; this module counts damaged lines and skips them.
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
from felixlike.records.record import UKERNELS, Record
from felixlike.records.store import Store, StoredWorkload
from felixlike.symbolic import Sketch, sketches

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
"""Names of MetaSchedule's database files."""

_FAILED = 1e9
"""Smallest time that means a failure, s: MetaSchedule writes 1e10."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Result of an export or import.

    Attributes:
        records: Number of written records, or of new ones.
        known: Number of records that the store had already.
        workloads: Number of workloads that these records belong to.
        passed_over: Number of skipped records, by reason.
    """

    records: int
    known: int
    workloads: int
    passed_over: Mapping[str, int] = field(default_factory=dict)


def export_database(
    store: Store, folder: "str | os.PathLike[str]", *, target: Any = "cpu", device: str | None = None, best: int = 0
) -> Exchanged:
    """Write a store's OK measurements of one target and device as a database for MetaScheduleApplyDatabase.

    MetaSchedule does not distinguish targets, so a folder holds the records of one. Each workload is written in every
    form in which MetaSchedule may look it up. Schedules of functions with constant weights pack these: run
    SplitLayoutRewritePreproc and FoldConstant after relax.transform.MetaScheduleApplyDatabase, or every call packs
    them.

    Args:
        store: The store to read.
        folder: Folder for the two files; it is created if missing.
        target: A name or a TVM target.
        device: Name of the device; None for this machine's.
        best: Number of records of each workload, fastest first; 0 for all.

    Returns:
        The numbers of written and skipped records.

    Raises:
        StoreError: The folder already holds a database, or it cannot be written.
        UnknownTarget: The target's name is unknown.
    """
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
            _check_written(Path(unfinished), len(database), place)
            for name in (WORKLOADS, RECORDS):
                os.replace(Path(unfinished) / name, place / name)
    except OSError as error:
        if isinstance(error, FelixlikeError):
            raise
        raise StoreError(str(error), where=str(place), remedy="check that the folder is writable") from error
    return Exchanged(written, 0, workloads, passed_over)


def _check_written(folder: Path, count: int, place: Path) -> None:
    """Raise StoreError unless a new database has `count` records and their workloads: TVM ignores a full disk."""
    damaged: Counter[str] = Counter()
    workloads = sum(1 for _ in _lines(folder / WORKLOADS, damaged))
    numbers = [line[0] for line in _lines(folder / RECORDS, damaged)]
    if damaged or len(numbers) < count or max(numbers, default=-1) >= workloads:
        raise StoreError("the database could not be written", where=str(place), remedy="check that the disk has space")


def import_database(
    store: Store, folder: "str | os.PathLike[str]", *, target: Any = "cpu", device: str | None = None
) -> Exchanged:
    """Add MetaSchedule's measurements to a store, so that `optimize` with this store uses them.

    MetaSchedule does not verify outputs, so an imported schedule is verified before it is chosen. Imported
    measurements do not count against budgets.

    Args:
        store: The store to add to.
        folder: Folder of the database.
        target: Target of the imported records, a name or a TVM target; `optimize` must be called with the same.
        device: Name of the device that measured them, which the database does not say; None for this machine's.

    Returns:
        The numbers of new, known and skipped records.

    Raises:
        StoreError: There is no database, or the store cannot be written.
        UnknownTarget: The target's name is unknown.
    """
    place = _place(store, folder)
    target = resolve_target(target)
    where = device_name(target) if device is None else _device(device)
    passed_over: Counter[str] = Counter()
    database = _Database(place, target, passed_over)
    records_by_sketch: dict[tuple[str, str], list[Record]] = {}
    for line in _lines(place / RECORDS, passed_over):
        try:
            record = database.record(line, where)
        except _PassedOver as reason:
            passed_over[str(reason)] += 1
            continue
        records_by_sketch.setdefault((record.task, record.sketch), []).append(record)
    before = store.count()
    for (task, sketch), records in records_by_sketch.items():
        store.extend(database.known[task], records, database.sketches[task][sketch])
    new = store.count() - before
    return Exchanged(
        new, sum(map(len, records_by_sketch.values())) - new, len({task for task, _ in records_by_sketch}), passed_over
    )


def _main(line: Any) -> Any:
    """Return the function of a workload's line, [hash, base64 of eight bytes of length and the module's JSON].

    MetaSchedule's own reader creates any object that the JSON names. Raises _tvm.NotAllowed, or TVM's errors."""
    try:
        recorded, encoded = line
        text = base64.b64decode(encoded, validate=True)[8:].decode()
    except (ValueError, TypeError) as error:
        raise _tvm.NotAllowed(f"it is not a workload: {first_line(error)}") from None
    module = _tvm.load_function(text)
    if str(_tvm.ms.database.Workload(module).as_json()[0]) != recorded:
        raise _tvm.NotAllowed("its hash does not match")
    return module["main"]


class _PassedOver(Exception):
    """Reason for skipping a record."""


class _Database:
    """Reader of a database.

    Attributes:
        known: Tasks by key.
        sketches: Sketches of each task by the task's key and their own.
    """

    def __init__(self, place: Path, target: Any, passed_over: Counter[str]) -> None:
        self.known: dict[str, Task] = {}
        self.sketches: dict[str, dict[str, Sketch]] = {}
        self._target = target
        self._targets: dict[str, bool] = {}
        self._lines: list[Any] = list(_lines(place / WORKLOADS, passed_over, keep=True))
        self._tasks: dict[int, Task | str] = {}

    def record(self, line: Any, device: str) -> Record:
        """Return the record of a line; raise _PassedOver with the reason to skip it."""
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
            tvm="",  # the database has neither version nor date; constants make repeated imports equal
            felixlike="",
            seed=0,
            time=0.0,
        )

    def _fits(self, target: Any) -> bool:
        """Return whether a record's target equals ours in what code depends on; raise _PassedOver if it is invalid."""
        text = json.dumps(target)
        if text not in self._targets:
            try:
                theirs = self._target if target is None else _tvm.Target(target)
            except _tvm.TVM_ERRORS as error:
                if not _tvm.raised_in_tvm(error):
                    raise
                raise _PassedOver("damaged lines") from error
            decisive = [(t.kind.name, *map(t.attrs.get, _DECISIVE)) for t in (theirs, self._target)]
            self._targets[text] = str(decisive[0]) == str(decisive[1])
        return self._targets[text]

    def _task(self, number: Any) -> Task:
        """Return the task of a workload's number; raise _PassedOver if it is damaged or missing."""
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
        known = self._tasks[number]
        if isinstance(known, str):
            raise _PassedOver("of a workload that TVM cannot read")
        return self.known[known.key]

    def _point(self, task: Task, trace: Any) -> tuple[Sketch, tuple[int, ...]]:
        """Return the sketch and the point of a trace; raise _PassedOver if no sketch of ours has this trace."""
        for sketch in self.sketches[task.key].values():
            try:
                point = sketch.codec.point(trace)
            except (InvalidPoint, IndexError, TypeError, ValueError, KeyError) as error:
                raise _PassedOver("damaged lines") from error
            if point is not None:
                if not sketch.in_range(point):
                    raise _PassedOver("damaged lines")
                return sketch, point
        raise _PassedOver("of a sketch that is not among ours")


_DECISIVE = ("mcpu", "num-cores", "arch")
"""Attributes of a target that times and schedules depend on, besides its kind."""


def _measurement(seconds: Any) -> Measurement:
    """Return the Measurement of a record's repeats, s; raise _PassedOver if they are damaged."""
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
    """Yield the JSON value of each line; count damaged lines, and skip them, or yield None if `keep` is set."""
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
            f"{path.name} cannot be read: {error.strerror}",
            where=str(path.parent),
            remedy="check the path of the folder",
        ) from error


def _place(store: Any, folder: Any) -> Path:
    """Check both arguments and return the folder's path."""
    option_checks.of_kind(store, Store, "store", where="MetaSchedule", remedy="pass a store from records.open")
    return option_checks.path(folder, "folder", error=StoreError)


def _device(name: Any) -> str:
    """Return the device's name; raise InvalidOption if it is not a text."""
    return option_checks.text(
        name, "device", remedy="pass the name of a device, as in Record.device, or None for this machine's"
    )


def _refuse_used(place: Path) -> None:
    """Raise StoreError if the folder holds a database or is a file."""
    if any((place / name).exists() for name in (WORKLOADS, RECORDS)):
        raise StoreError(
            "the folder already contains a database", where=str(place), remedy="give the path of another folder"
        )
    if place.exists() and not place.is_dir():
        raise StoreError(
            "expected a folder, got a file",
            where=str(place),
            remedy="give the path of a folder; it is created if it does not exist",
        )


def _export_workload(
    store: Store,
    workload: StoredWorkload,
    target: Any,
    device: str,
    best: int,
    database: Any,
    passed_over: Counter[str],
) -> int:
    """Write one workload's records and return their number."""
    records = store.fastest(workload.task, best or None, device=device)
    if not records:
        return 0
    if records[0].sketch == UKERNELS:  # such a workload has no other records
        passed_over["of kernels for dynamic sizes"] += len(records)
        return 0
    main = _stored_main(workload)
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
        result = record.measurement
        for form in forms:
            seconds = list(result.repeats) or [result.seconds]
            database.commit_tuning_record(_tvm.ms.database.TuningRecord(trace, form, seconds, target, arguments))
        written += 1
    return written


def _stored_main(workload: StoredWorkload) -> Any | None:
    """Return the PrimFunc of a workload; None if it was lost or TVM cannot read it."""
    try:
        return _tvm.load_function(workload.module)["main"] if workload.module else None
    except _tvm.NotAllowed:
        return None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None


def _forms(module: Any) -> list[Any]:
    """Return the forms of the module in which MetaSchedule may look it up.

    AnnotateTIROpPattern adds an attribute to functions that were not fused. The layout-free buffers are those of our
    own modules, or, as AttachAttrLayoutFreeBuffers writes them for a model, all constants (an empty list if none)."""
    main = _tvm.without_attributes(module["main"], CONSTANTS)
    theirs = main.with_attr(LAYOUT_FREE, list(noted_constants(module["main"])))
    forms: list[Any] = []
    for func in (main, theirs):
        plain = _tvm.IRModule({"main": func})
        for form in (plain, _tvm.relax.transform.AnnotateTIROpPattern()(plain)):
            if not any(_tvm.structural_equal(form, other) for other in forms):
                forms.append(form)
    return forms
