"""The tables of a store, their version, and how a Record becomes a row and comes back.

nan is stored as NULL (SQLite has no nan), inf as itself; lists as JSON. Nothing read back is ever run.
"""

import json
import math
from typing import Any

from felixlike.measure.measurement import Measurement, Status
from felixlike.records.record import Record

APPLICATION = 0x666C6978  # "flix", SQLite's mark of whose file it is
VERSION = 1

TABLES = (
    """
    CREATE TABLE workloads (
        key TEXT PRIMARY KEY,       -- Task.key
        name TEXT NOT NULL,         -- for people
        module TEXT NOT NULL,       -- TVM's JSON of the IRModule
        target TEXT NOT NULL,       -- TVM's text of the target
        flops REAL NOT NULL         -- floating-point operations of one call
    )
    """,
    """
    CREATE TABLE measurements (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
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
        felixlike TEXT NOT NULL,
        seed INTEGER NOT NULL,
        time REAL NOT NULL          -- seconds since 1970
    )
    """,
    "CREATE INDEX fastest ON measurements (task, target, device, status, seconds)",
)

COLUMNS = (
    *("task", "sketch", "point", "status", "seconds", "repeats", "spread", "error", "message"),
    *("build_seconds", "run_seconds", "device", "target", "tvm", "felixlike", "seed", "time"),
)


def to_row(record: Record) -> tuple[Any, ...]:
    """A record's values, in the order of COLUMNS."""
    found = record.measurement
    return (
        *(record.task, record.sketch, json.dumps(record.point)),
        *(found.status.value, _null(found.seconds), json.dumps(found.repeats), _null(found.spread), found.error),
        *(found.message, found.build_seconds, found.run_seconds),
        *(record.device, record.target, record.tvm, record.felixlike, record.seed, record.time),
    )


def from_row(row: tuple[Any, ...]) -> Record:
    """The record of a row.  Raises ValueError or TypeError if the row was not written by this module."""
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
    )
    return Record(
        task=value["task"],
        sketch=value["sketch"],
        point=tuple(int(step) for step in json.loads(value["point"])),
        measurement=measurement,
        device=value["device"],
        target=value["target"],
        tvm=value["tvm"],
        felixlike=value["felixlike"],
        seed=value["seed"],
        time=value["time"],
    )


def _null(number: float) -> float | None:
    return None if math.isnan(number) else number


def _nan(number: float | None) -> float:
    return math.nan if number is None else number
