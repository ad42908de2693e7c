"""Provide the record store: one SQLite file in which a measurement is durable once `append` has returned."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike.errors import InvalidOption
from felixlike.frontend.task import Task
from felixlike.hardware import device_name
from felixlike.measure.measurement import Status
from felixlike.records.file import StoreFile
from felixlike.records.place import path_of
from felixlike.records.record import UKERNELS, Record
from felixlike.records.run import Run
from felixlike.records.schema import VALUES, Row, from_row, opened, point_from, sealed, to_row

if TYPE_CHECKING:
    from felixlike.symbolic import Sketch

_RIGHT = "status = 'ok' AND seconds IS NOT NULL"
_TASK = "pass a task from felixlike.extract_tasks(model, shapes)"
_AT_ONCE = 500
"""Rows that one query selects by number; chosen by hand."""


def open(path: "str | os.PathLike[str] | None" = None, *, read_only: bool = False) -> "Store":  # noqa: A001
    """Open a store. A missing file is created, and a file of an older version is upgraded.

    Args:
        path: Path of the file; None or ":memory:" for a store in memory.
        read_only: Neither create nor upgrade nor change the file.

    Returns:
        The open store, a context manager.

    Raises:
        StoreError: The file cannot be opened or written, is damaged, is not a store, or has a newer version.

    Example:
        >>> with records.open("records.sqlite") as store:
        ...     fastest = store.best(task)
    """
    return Store(path, read_only=read_only)


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Summary of a workload's measurements on one device.

    Attributes:
        task: The task's key.
        name: The task's name.
        flops: Floating-point operations of a call.
        target: TVM's text of the target.
        device: Name of the device.
        measurements: Number of measurements.
        right: Number of OK measurements.
        best: Seconds per call of the fastest OK measurement; None if there is none.
    """

    task: str
    name: str
    flops: float
    target: str
    device: str
    measurements: int
    right: int
    best: float | None


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """Workload of a store.

    Attributes:
        task: The task's key.
        name: The task's name, only for display.
        module: TVM's JSON of the IRModule; empty if it was lost.
        target: TVM's text of the target.
    """

    task: str
    name: str
    module: str
    target: str


class Brief(NamedTuple):
    """Short form of a measurement for a search.

    Attributes:
        id: Number of the measurement.
        sketch: The sketch's key.
        point: Value of each variable of the sketch.
        seconds: Seconds per call; inf unless OK, nan if only checked.
        own: Whether felixlike measured it, not another tuner.
    """

    id: int
    sketch: str
    point: tuple[int, ...]
    seconds: float
    own: bool


class Store:
    """Record store of workloads and measurements. It is a context manager and for use by the thread that opened it.

    Args:
        path: Path of the file, which is created if missing; None or ":memory:" for a store in memory.
        read_only: Neither create nor upgrade nor change the file.

    Raises:
        StoreError: The file cannot be opened or written, is damaged, is not a store, or has a newer version.
    """

    def __init__(self, path: "str | os.PathLike[str] | None" = None, *, read_only: bool = False) -> None:
        self.path = path_of(path)
        self._file = StoreFile(self.path, read_only=read_only)
        self._known: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Calling it again has no effect."""
        self._file.close()

    # -- measurements -------------------------------------------------------------------------------------------------

    def append(self, task: Task, record: Record, sketch: "Sketch | None" = None) -> None:
        """Add a measurement of a task. It is durable once this returns; a record is not added twice.

        Args:
            task: The task that was measured.
            record: The measurement.
            sketch: The sketch that was measured, so that the store keeps its trace.

        Raises:
            InvalidOption: The record is of another task.
            StoreError: The file cannot be written.
        """
        self.extend(task, [record], sketch)

    def extend(self, task: Task, records: Iterable[Record], sketch: "Sketch | None" = None) -> None:
        """Add several measurements of a task in one transaction. See `append`."""
        rows = []
        task = option_checks.of_kind(task, Task, "task", where="Store", remedy=_TASK)
        for record in records:
            option_checks.of_kind(
                record, Record, "record", where="Store", remedy="pass a record from records.make_record"
            )
            if record.task != task.key:
                raise InvalidOption(
                    f"the record belongs to task {record.task}, not to {task.key} ({task.name})",
                    where="Store",
                    remedy="pass the task of the record",
                )
            rows.append(sealed(to_row(record)))
        new = (task.key, "" if sketch is None else sketch.key)
        with self._file.explained(), self._file.transaction():
            if new not in self._known:
                self.add_rows("workloads", [sealed(_workload(task))])
                if sketch is not None:
                    self.add_rows("sketches", [sealed((task.key, sketch.key, sketch.trace_json()))])
            self.add_rows("measurements", rows)
        self._known.add(new)

    def best(self, task: Task | str, *, device: str | None = None) -> Record | None:
        """Return the fastest OK measurement of a task on one device.

        Args:
            task: The task, or its key, which needs a device.
            device: Name of the device; None for the device of the task's target. Times of different machines are not
                comparable.

        Returns:
            The record, or None if there is none.

        Raises:
            InvalidOption: `task` is a key and `device` is None.
        """
        records = self.fastest(task, 1, device=device)
        return records[0] if records else None

    def fastest(self, task: Task | str, count: int | None, *, device: str | None = None) -> list[Record]:
        """Return up to `count` OK measurements of a task, fastest first; all if `count` is None. See `best`."""
        most = (
            -1
            if count is None
            else option_checks.whole(count, "count", where="Store.fastest", otherwise="None for all")
        )
        key, where = _place(task, device)
        with self._file.explained():
            rows = self._file.execute(
                f"{self._select()} WHERE task = ? AND device = ? AND {_RIGHT} ORDER BY seconds, id LIMIT ?",
                (key, where, most),
            ).fetchall()
        records = [self._record(row) for row in rows]
        if any(r.task != key or r.device != where or r.measurement.status is not Status.OK for r in records):
            raise self._file.damaged("the file is damaged (an index differs from its table)")
        return records

    def measurements(self, task: Task | str | None = None, *, after: int = 0) -> Iterator[Record]:
        """Yield records in the order in which they were appended, read one at a time.

        Args:
            task: The task or its key; None for all tasks.
            after: Skip the store's first `after` measurements, for callers that have read them.
        """
        condition, values = ("", ()) if task is None else (" AND task = ?", (_key(task),))
        for row in self._rows(f"{self._select()} WHERE id > ?{condition} ORDER BY id", (after, *values)):
            yield self._record(row)

    def briefs(self, task: Task | str, *, device: str | None = None) -> Iterator[Brief]:
        """Yield the short form of every measurement of a task on a device, in the order in which they were appended.

        This is faster than `measurements`, since the checksums are not checked. See `best` for the arguments."""
        query = "SELECT id, sketch, point, status, seconds, felixlike FROM measurements WHERE task = ? AND device = ?"
        for number, sketch, point, status, seconds, version in self._rows(f"{query} ORDER BY id", _place(task, device)):
            seconds_per_call = float("inf") if status != Status.OK else float("nan") if seconds is None else seconds
            try:
                yield Brief(number, sketch, point_from(point), seconds_per_call, version != "")
            except (ValueError, TypeError) as error:
                raise self._file.damaged(f"a row is damaged ({error})") from error

    def numbered(self, numbers: Sequence[int]) -> Iterator[Record]:
        """Yield the records with these numbers (`Brief.id`), in the order in which they were appended."""
        option_checks.of_kind(numbers, Iterable, "numbers", where="Store.numbered", remedy="pass a list of Brief.id")
        ordered = sorted(option_checks.whole(number, "number", where="Store.numbered") for number in numbers)
        for start in range(0, len(ordered), _AT_ONCE):
            some = ordered[start : start + _AT_ONCE]
            query = f"{self._select()} WHERE id IN ({', '.join('?' * len(some))}) ORDER BY id"
            for row in self._rows(query, some):
                yield self._record(row)

    def count(self, sketch: str | None = None) -> int:
        """Return the number of measurements, of all sketches or of one."""
        condition, values = ("", ()) if sketch is None else (" WHERE sketch = ?", (sketch,))
        with self._file.explained():
            return int(self._file.execute(f"SELECT count(*) FROM measurements{condition}", values).fetchone()[0])

    def summary(self) -> tuple[WorkloadSummary, ...]:
        """Return a summary for every workload, target and device, in the order of their first measurements.

        Kernels for dynamic sizes are left out, since each of their sizes is a workload; `count(UKERNELS)` counts them.
        """
        # SQLite uses the index of UKERNELS only for a constant in the query.
        query = (
            "SELECT task, device, count(*), sum(status = 'ok'), min(CASE WHEN status = 'ok' THEN seconds END)"
            f" FROM measurements WHERE task NOT IN (SELECT task FROM measurements WHERE sketch = '{UKERNELS}')"
            " GROUP BY task, device ORDER BY min(id)"
        )
        known = {key: (name, flops, target) for key, name, _, target, flops in self.values("workloads")}
        return tuple(WorkloadSummary(task, *known[task], *rest) for task, *rest in self._rows(query) if task in known)

    # -- what was measured --------------------------------------------------------------------------------------------

    def workloads(self) -> tuple[StoredWorkload, ...]:
        """Return all workloads in the order in which they were added."""
        return tuple(StoredWorkload(*row[:4]) for row in self.values("workloads"))

    def trace(self, task: str, sketch: str) -> str | None:
        """Return MetaSchedule's JSON of a sketch's trace, [instructions, decisions]; None if it was not stored.

        Args:
            task: The task's key.
            sketch: The sketch's key.
        """
        return next(
            (t for key_of_task, key, t in self.values("sketches") if (key_of_task, key) == (task, sketch)), None
        )

    # -- runs ---------------------------------------------------------------------------------------------------------

    def begin(self, run: Run) -> float:
        """Add a run and return the seconds that earlier runs of its model have spent on its device."""
        with self._file.explained(), self._file.transaction():
            (spent,) = self._file.execute(
                "SELECT total(seconds) FROM runs WHERE model = ? AND device = ?", (run.model, run.device)
            ).fetchone()
            self.add_rows("runs", [_run(run, 0.0)])
        return float(spent)

    def spend(self, run: Run, seconds: float) -> None:
        """Update the seconds that a run has taken; a smaller number than the stored one changes nothing."""
        with self._file.explained(), self._file.transaction():
            self.add_rows("runs", [_run(run, seconds)])

    def note_command(self, options: str) -> None:
        """Store the options of `felixlike tune` (JSON) as the latest command."""
        with self._file.explained(), self._file.transaction():
            self._file.execute("DELETE FROM commands WHERE options = ?", (options,))
            self.add_rows("commands", [sealed((options,))])

    def commands(self) -> tuple[str, ...]:
        """Return the options of each `felixlike tune` with this store, the latest last."""
        return tuple(options for (options,) in self.values("commands"))

    # -- rows, for merging and the like -------------------------------------------------------------------------------

    @property
    def file(self) -> StoreFile:
        """The SQLite file of the store."""
        return self._file

    def values(self, table: str) -> Iterator[Row]:
        """Yield the values of a table's rows without checksums, in the order in which they were added.

        Raises StoreError at a damaged row."""
        yield from map(self._opened, self.rows(table))

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table, unchecked, with the checksum last (None in version 1, which has none)."""
        if self._file.version > 1 or table in ("workloads", "measurements"):
            yield from self._rows(f"{self._select(table)} ORDER BY rowid")

    def add_rows(self, table: str, rows: Sequence[Row]) -> int:
        """Add rows as `rows` yields them and return the number of new ones. Call it inside a transaction."""
        names = (*VALUES[table], "checksum")
        statement = (
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) {_ON_CONFLICT[table]}"
        )
        return max(0, self._file.connection.executemany(statement, rows).rowcount)

    def _select(self, table: str = "measurements") -> str:
        """Return the SELECT of a table's columns and checksum, with constants for columns that an old version lacks."""
        seal = "checksum" if self._file.version > 1 else "NULL"
        names = ["'' AS kernels" if n == "kernels" and self._file.version < 3 else n for n in VALUES[table]]
        return f"SELECT {', '.join(names)}, {seal} FROM {table}"

    def _rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Yield the rows of a query, read one at a time."""
        with self._file.explained():
            cursor = self._file.execute(query, values)
        while True:
            with self._file.explained():
                row = cursor.fetchone()
            if row is None:
                return
            yield row

    def _opened(self, row: Row) -> Row:
        """Return the values of a row; raise StoreError if it is damaged."""
        try:
            return opened(row)
        except (ValueError, TypeError) as error:
            raise self._file.damaged(f"a row is damaged ({error})") from error

    def _record(self, row: Row) -> Record:
        """Return the record of a row; raise StoreError if it is damaged."""
        try:
            return from_row(opened(row))
        except (ValueError, TypeError, KeyError) as error:
            raise self._file.damaged(f"a row is damaged ({error})") from error


_ON_CONFLICT = {
    # A workload whose module was lost in a damaged file gets it from another store.
    "workloads": "ON CONFLICT (key) DO UPDATE SET name = excluded.name, module = excluded.module,"
    " flops = excluded.flops, checksum = excluded.checksum WHERE module = '' AND excluded.module != ''",
    "sketches": "ON CONFLICT (task, key) DO NOTHING",
    "measurements": "ON CONFLICT (checksum) DO NOTHING",
    "runs": "ON CONFLICT (id) DO UPDATE SET seconds = excluded.seconds, checksum = excluded.checksum"
    " WHERE excluded.seconds > seconds",
    "commands": "ON CONFLICT (options) DO NOTHING",
}


def _key(task: Task | str) -> str:
    """Return the key of a task or the key itself."""
    if isinstance(task, str):
        return task
    return str(option_checks.of_kind(task, Task, "task", where="Store", remedy=f"{_TASK}, or its key").key)


def _place(task: Task | str, device: str | None) -> tuple[str, str]:
    """Return (task's key, device's name); raise InvalidOption for a key without a device."""
    key = _key(task)
    if device is not None:
        return key, option_checks.text(device, "device", remedy="pass the name of a device, as in Record.device")
    if isinstance(task, str):
        raise InvalidOption(
            "a task's key does not determine a device", where="Store", remedy="pass device=…, or the Task"
        )
    return key, device_name(task.target)


def _run(run: Run, seconds: float) -> Row:
    """Return the row of a run."""
    return sealed((*(getattr(run, name) for name in VALUES["runs"][:-1]), seconds))


def _workload(task: Task) -> Row:
    """Return the values of a task's workload."""
    return task.key, task.name, str(_tvm.ir.save_json(task.module)), str(task.target), float(task.flops)
