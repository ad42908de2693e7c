"""Conversion between rows and records, without a database."""

import math

import pytest

from felixlike.measure.measurement import Measurement, Status
from felixlike.records.record import Record
from felixlike.records.schema import COLUMNS, from_row, to_row


def record_of(measurement: Measurement) -> Record:
    return Record(
        task="task",
        sketch="sketch",
        point=(1, 2**40),
        measurement=measurement,
        device="a processor",
        target='{"kind":"llvm"}',
        tvm="0.27.0",
        felixlike="0.1.0",
        seed=7,
        time=1.8e9,
    )


@pytest.mark.parametrize("status", Status)
def test_every_status_round_trips(status: Status) -> None:
    record = record_of(Measurement(status, 1.0, (0.5, 1.5), 0.7, math.inf, "why", 0.25, 0.125))
    row = to_row(record)
    assert len(row) == len(COLUMNS)
    assert from_row(row) == record
    assert type(row[COLUMNS.index("status")]) is str


def test_nan_is_stored_as_null_and_inf_as_inf() -> None:
    row = to_row(record_of(Measurement(Status.TIMEOUT)))
    assert row[COLUMNS.index("spread")] is None
    assert row[COLUMNS.index("seconds")] == math.inf
    assert math.isnan(from_row(row).measurement.spread)


@pytest.mark.parametrize(("column", "value"), [("status", "fine"), ("point", "[1,"), ("repeats", "7")])
def test_invalid_rows_are_errors(column: str, value: str) -> None:
    row = list(to_row(record_of(Measurement(Status.OK, 1.0))))
    row[COLUMNS.index(column)] = value
    with pytest.raises((ValueError, TypeError)):
        from_row(tuple(row))
