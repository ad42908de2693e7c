"""A store: one SQLite file in which every measurement is safe once append() has returned.

WAL with synchronous=FULL: killed at any moment, it reopens with everything reported. Several processes may use one
file; each waits its turn. Everything SQLite complains about becomes a StoreError.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from felixlike.errors import StoreError
from felixlike.frontend.task import Task
from felixlike.records.record import Record
from felixlike.records.schema import APPLICATION, COLUMNS, TABLES, VERSION, from_row, to_row

_MEMORY = ":memory:"
_BUSY_MILLISECONDS = 30_000
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM measurements"
_INSERT = f"INSERT INTO measurements ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_REPLACE = "give the name of a file that does not exist yet, or restore this one from a copy"


def open(path: "str | os.PathLike[str] | None" = None) -> "Store":  # noqa: A001
    """A store in this file, made if there is none; in memory if path is None.

    Raises StoreError if the file cannot be opened or written, is damaged, is not a store, or is of a newer version."""
    return Store(path)


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """task: its key.  flops: of a call.  measurements, right: how many in all, and with the right answer.
    best: seconds of the fastest right one, None where there is none."""

    task: str
    name: str
    flops: float
    target: str
    device: str
    measurements: int
    right: int
    best: float | None


class Store:
    """Workloads and measurements.  A context manager; for use by the thread that opened it."""

    def __init__(self, path: "str | os.PathLike[str] | None" = None) -> None:
        self.path = None if path is None else Path(path)
        self._where = "the store in memory" if self.path is None else str(self.path)
        self._known: set[str] = set()
        self._refuse_bad_place()
        with self._explained():
            self._connection = sqlite3.connect(
                _MEMORY if self.path is None else self.path, timeout=_BUSY_MILLISECONDS / 1000, isolation_level=None
            )
        try:
            with self._explained():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file.  May be called again."""
        with self._explained():
            self._connection.close()

    def append(self, task: Task, record: Record) -> None:
        """Add a measurement of a task, for good once this returns.

        Raises ValueError if the record is of another task, StoreError if the file cannot be written."""
        if record.task != task.key:
            raise ValueError(f"the record is of task {record.task}, not of {task.key} ({task.name})")
        with self._explained(), self._transaction():
            if task.key not in self._known:
                self._add_workload(task)
            self._connection.execute(_INSERT, to_row(record))
        self._known.add(task.key)

    def best(self, task: Task, *, device: str | None = None) -> Record | None:
        """The fastest OK measurement of a task for its target; None if there is none.

        device: its name; None: this machine's, since times of different machines do not compare."""
        from felixlike.hardware import device_name

        condition = "task = ? AND target = ? AND device = ? AND status = 'ok' AND seconds IS NOT NULL"
        values = (task.key, str(task.target), device_name(task.target) if device is None else device)
        with self._explained():
            row = self._connection.execute(
                f"{_SELECT} WHERE {condition} ORDER BY seconds, id LIMIT 1", values
            ).fetchone()
        return None if row is None else self._record(row)

    def measurements(self, task: Task | None = None) -> Iterator[Record]:
        """All records, of one task or of all, in the order in which they were appended, read as they are asked for."""
        condition, values = ("", ()) if task is None else (" WHERE task = ?", (task.key,))
        with self._explained():
            rows = self._connection.execute(f"{_SELECT}{condition} ORDER BY id", values)
        while True:
            with self._explained():
                row = rows.fetchone()
            if row is None:
                return
            yield self._record(row)

    def summary(self) -> tuple[WorkloadSummary, ...]:
        """For every workload, target and device, how much is known; in the order of the first measurement."""
        query = (
            "SELECT w.key, w.name, w.flops, m.target, m.device, count(*), sum(m.status = 'ok'),"
            " min(CASE WHEN m.status = 'ok' THEN m.seconds END)"
            " FROM workloads w JOIN measurements m ON m.task = w.key"
            " GROUP BY w.key, m.target, m.device ORDER BY min(m.id)"
        )
        with self._explained():
            rows = self._connection.execute(query).fetchall()
        return tuple(WorkloadSummary(*row) for row in rows)

    def _add_workload(self, task: Task) -> None:
        from felixlike import tvmlib

        module = str(tvmlib.ir.save_json(task.module))
        self._connection.execute(
            "INSERT OR IGNORE INTO workloads (key, name, module, target, flops) VALUES (?, ?, ?, ?, ?)",
            (task.key, task.name, module, str(task.target), task.flops),
        )

    def _record(self, row: tuple[Any, ...]) -> Record:
        try:
            return from_row(row)
        except (ValueError, TypeError) as error:
            raise StoreError(f"it holds a damaged row ({error})", where=self._where, remedy=_REPLACE) from error

    def _refuse_bad_place(self) -> None:
        """SQLite says "unable to open database file" for all of these."""
        if self.path is None:
            return
        if self.path.is_dir():
            raise StoreError("it is a directory", where=self._where, remedy="give the name of a file in it")
        if not self.path.parent.is_dir():
            raise StoreError(
                f"there is no directory {self.path.parent}", where=self._where, remedy="make it, or give another path"
            )

    def _prepare(self) -> None:
        """Set the connection up, and make the tables of a new file."""
        execute = self._connection.execute
        execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA foreign_keys = ON")
        with self._transaction():
            (application,) = execute("PRAGMA application_id").fetchone()
            (version,) = execute("PRAGMA user_version").fetchone()
            (tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application == version == tables == 0:
                for statement in TABLES:
                    execute(statement)
                execute(f"PRAGMA application_id = {APPLICATION}")
                execute(f"PRAGMA user_version = {VERSION}")
                return
        if application != APPLICATION:
            raise StoreError("it is a SQLite file of another program", where=self._where, remedy=_REPLACE)
        if version > VERSION:
            raise StoreError(
                f"it has version {version}, but this felixlike knows only versions up to {VERSION}",
                where=self._where,
                remedy="use the newer felixlike that wrote it, or another file",
            )
        (health,) = execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise StoreError(f"it is damaged ({' '.join(health.split())})", where=self._where, remedy=_REPLACE)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, alone in the file."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors as StoreErrors with a remedy."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise StoreError(
                str(error), where=self._where, remedy="use a store in the thread that opened it, before it is closed"
            ) from error
        except sqlite3.OperationalError as error:
            raise StoreError(
                str(error),
                where=self._where,
                remedy="see that the file and its directory can be written, the disk has room, and nobody holds a lock",
            ) from error
        except sqlite3.Error as error:
            raise StoreError(f"it is damaged or not a store ({error})", where=self._where, remedy=_REPLACE) from error
