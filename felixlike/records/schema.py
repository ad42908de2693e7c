"""Define the tables of a store and their version, and convert Records to rows and back.

nan is stored as NULL (SQLite has no nan), inf as itself, lists as JSON. Every row has a checksum of its values: reading
detects damaged rows, and equal measurements are the same row in every store. Stored data is never executed, except for
the command of `felixlike resume`, which asks for confirmation unless this user is known to have given it.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from felixlike.hardware.occupancy import Kernel
from felixlike.measure.measurement import Measurement, Status
from felixlike.records.record import UKERNELS, Record

APPLICATION = 0x666C6978  # "flix": SQLite's application_id of a store
VERSION = 4
"""Version of the tables, stored as SQLite's user_version. Version 4 has kernels for dynamic sizes (UKERNELS)."""

INDEX = f"CREATE INDEX IF NOT EXISTS ukernels ON measurements (task) WHERE sketch = '{UKERNELS}'"
"""The index for tasks whose records are kernels for dynamic sizes. Since version 4; upgrades to 2 create it, too."""

TABLES = (
    """
    CREATE TABLE workloads (
        key TEXT PRIMARY KEY,       -- Task.key
        name TEXT NOT NULL,         -- for people
        module TEXT NOT NULL,       -- TVM's JSON of the IRModule; empty where it was lost
        target TEXT NOT NULL,       -- TVM's text of the target
        flops REAL NOT NULL,        -- floating-point operations of one call
        checksum BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE sketches (
        task TEXT NOT NULL REFERENCES workloads (key),
        key TEXT NOT NULL,          -- Sketch.key
        trace TEXT NOT NULL,        -- MetaSchedule's JSON: [instructions, decisions]; a point replaces the decisions
        checksum BLOB NOT NULL,
        PRIMARY KEY (task, key)
    )
    """,
    """
    CREATE TABLE measurements (
        id INTEGER PRIMARY KEY,     -- 1, 2, 3 … in the order in which they were added; none is ever taken away
        task TEXT NOT NULL REFERENCES workloads (key),
        sketch TEXT NOT NULL,
        point TEXT NOT NULL,        -- JSON list of integers
        status TEXT NOT NULL,
        seconds REAL,               -- per call; inf: failed, NULL: not timed
        repeats TEXT NOT NULL,      -- JSON list of seconds per call
        spread REAL,
        error REAL,                 -- relative to the float64 reference; NULL: not verified
        message TEXT NOT NULL,
        build_seconds REAL NOT NULL,
        run_seconds REAL NOT NULL,
        device TEXT NOT NULL,
        target TEXT NOT NULL,
        tvm TEXT NOT NULL,
        felixlike TEXT NOT NULL,    -- empty: measured by another tuner
        seed INTEGER NOT NULL,
        time REAL NOT NULL,         -- seconds since 1970, for people only
        checksum BLOB NOT NULL UNIQUE,
        kernels TEXT NOT NULL DEFAULT ''  -- JSON list of what the CUDA compiler said of each; since version 3
    )
    """,
    "CREATE INDEX fastest ON measurements (task, device, status, seconds)",
    INDEX,
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,        -- at random
        model TEXT NOT NULL,        -- of its tasks' keys
        device TEXT NOT NULL,
        target TEXT NOT NULL,
        tvm TEXT NOT NULL,
        felixlike TEXT NOT NULL,
        weights TEXT NOT NULL,      -- digest of the cost model's weights at the start
        seed INTEGER NOT NULL,
        seconds REAL NOT NULL,      -- spent on tuning so far
        checksum BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE commands (
        id INTEGER PRIMARY KEY,         -- the latest is the largest
        options TEXT NOT NULL UNIQUE,   -- JSON of what `felixlike tune` was asked
        checksum BLOB NOT NULL
    )
    """,
)

COLUMNS = (
    *("task", "sketch", "point", "status", "seconds", "repeats", "spread", "error", "message"),
    *("build_seconds", "run_seconds", "device", "target", "tvm", "felixlike", "seed", "time", "kernels"),
)
"""Columns of the table of measurements."""

VALUES = {
    "workloads": ("key", "name", "module", "target", "flops"),
    "sketches": ("task", "key", "trace"),
    "measurements": COLUMNS,
    "runs": ("id", "model", "device", "target", "tvm", "felixlike", "weights", "seed", "seconds"),
    "commands": ("options",),
}
"""Columns of each table without the row's number and the checksum. Tables follow those that they refer to."""

REALS = frozenset(("flops", "seconds", "spread", "error", "build_seconds", "run_seconds", "time"))
"""Columns of floating-point numbers."""

Row = tuple[Any, ...]


def checksum(values: Sequence[Any]) -> bytes:
    """Return a digest of 16 bytes of a row's values; collisions have probability 2⁻⁶⁴ among 2³² rows.

    An empty text at the end is left out, so that measurements without a report of kernels keep the checksums of version
    2, which had no such column."""
    counted = values[:-1] if values and values[-1] == "" else values
    return hashlib.blake2b(json.dumps(counted).encode(), digest_size=16).digest()


def sealed(values: Row) -> Row:
    """Return the values with their checksum appended."""
    return (*values, checksum(values))


def opened(row: Row) -> Row:
    """Return the values of a row that ends with its checksum, or with None (files of version 1).

    Raises ValueError if the checksum does not match."""
    *values, digest = row
    if digest is not None and digest != checksum(values):
        raise ValueError("its checksum does not match")
    return tuple(values)


def to_row(record: Record) -> Row:
    """Return a record's values in the order of COLUMNS, exactly as SQLite returns them."""
    measurement = record.measurement
    return (
        *(record.task, record.sketch, json.dumps(record.point)),
        *(measurement.status.value, _null(measurement.seconds), json.dumps([float(s) for s in measurement.repeats])),
        *(_null(measurement.spread), None if measurement.error is None else _null(measurement.error)),
        *(measurement.message, float(measurement.build_seconds), float(measurement.run_seconds)),
        *(record.device, record.target, record.tvm, record.felixlike, int(record.seed), float(record.time)),
        json.dumps([kernel.told() for kernel in measurement.kernels]) if measurement.kernels else "",
    )


def from_row(row: Row) -> Record:
    """Return the record of a row; raise ValueError, TypeError or KeyError if the row is malformed."""
    value = dict(zip(COLUMNS, row, strict=True))
    measurement = Measurement(
        status=Status(value["status"]),
        seconds=_nan(value["seconds"]),
        repeats=tuple(float(seconds) for seconds in json.loads(value["repeats"])),
        spread=_nan(value["spread"]),
        error=value["error"],
        message=value["message"],
        build_seconds=value["build_seconds"],
        run_seconds=value["run_seconds"],
        kernels=tuple(map(Kernel.of, json.loads(value["kernels"]))) if value["kernels"] else (),
    )
    return Record(
        task=value["task"],
        sketch=value["sketch"],
        point=point_from(value["point"]),
        measurement=measurement,
        device=value["device"],
        target=value["target"],
        tvm=value["tvm"],
        felixlike=value["felixlike"],
        seed=value["seed"],
        time=value["time"],
    )


def point_from(text: str) -> tuple[int, ...]:
    """Return the point of a column's JSON text."""
    return tuple(int(step) for step in json.loads(text))


def _null(number: float) -> float | None:
    """Return None for nan."""
    return None if math.isnan(number) else float(number)


def _nan(number: float | None) -> float:
    """Return nan for None."""
    return math.nan if number is None else number
