"""The tables of a store, their version, and how a Record becomes a row and comes back.

nan is stored as NULL (SQLite has no nan), inf as itself; lists as JSON. Every row ends with a checksum of its values:
a damaged row is noticed when it is read, and equal measurements are the same row in every store. Nothing read back is
run, but for the command that `felixlike resume` repeats, after asking whoever has not given it.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from felixlike.hardware.occupancy import Kernel
from felixlike.measure.measurement import Measurement, Status
from felixlike.records.record import Record

APPLICATION = 0x666C6978  # "flix", SQLite's mark of whose file it is
VERSION = 3

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
"""Of a measurement."""

VALUES = {
    "workloads": ("key", "name", "module", "target", "flops"),
    "sketches": ("task", "key", "trace"),
    "measurements": COLUMNS,
    "runs": ("id", "model", "device", "target", "tvm", "felixlike", "weights", "seed", "seconds"),
    "commands": ("options",),
}
"""The columns of each table, without a row's number and the checksum that follows them. What others refer to first."""

REALS = frozenset(("flops", "seconds", "spread", "error", "build_seconds", "run_seconds", "time"))
"""Columns of floating-point numbers."""

Row = tuple[Any, ...]


def checksum(values: Sequence[Any]) -> bytes:
    """16 bytes for a row's values. Collisions are never met by chance (2⁻⁶⁴ among 2³² rows).

    An empty text at the end does not count: measurements of which the compiler said nothing have the checksums that
    they had before there was a column for that (version 2)."""
    counted = values[:-1] if values and values[-1] == "" else values
    return hashlib.blake2b(json.dumps(counted).encode(), digest_size=16).digest()


def sealed(values: Row) -> Row:
    """The values with their checksum."""
    return (*values, checksum(values))


def opened(row: Row) -> Row:
    """The values of a row that ends with its checksum, or with None where there is none (files of version 1).

    Raises ValueError where it is not theirs."""
    *values, found = row
    if found is not None and found != checksum(values):
        raise ValueError("its checksum is not right")
    return tuple(values)


def to_row(record: Record) -> Row:
    """A record's values, in the order of COLUMNS, exactly as SQLite will give them back."""
    found = record.measurement
    return (
        *(record.task, record.sketch, json.dumps(record.point)),
        *(found.status.value, _null(found.seconds), json.dumps([float(s) for s in found.repeats])),
        *(_null(found.spread), None if found.error is None else _null(found.error)),
        *(found.message, float(found.build_seconds), float(found.run_seconds)),
        *(record.device, record.target, record.tvm, record.felixlike, int(record.seed), float(record.time)),
        json.dumps([kernel.told() for kernel in found.kernels]) if found.kernels else "",
    )


def from_row(row: Row) -> Record:
    """The record of a row.  Raises ValueError, TypeError or KeyError if the row was not written by this module."""
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
    """A point from its column."""
    return tuple(int(step) for step in json.loads(text))


def _null(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _nan(number: float | None) -> float:
    return math.nan if number is None else number
