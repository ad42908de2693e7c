"""Log every event of a run as a line of JSON, in one file per run beside the store.

Input: events of the run. Output: `<store>.logs/<UTC time>-<process>.jsonl`, with a number appended if a process
starts several runs in one second; nothing without a store. The log is for people and their tools; `felixlike watch` and
`felixlike show --html` read it. If it cannot be written (a full disk), the run continues without it. Starting a log
removes logs older than `MOST_DAYS` or beyond `MOST_BYTES`; the latest `LATEST` always stay.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from felixlike._util import cache
from felixlike.errors import first_line
from felixlike.records.place import path_of

if TYPE_CHECKING:
    from felixlike.measure import Measurement
    from felixlike.report.report import Report
    from felixlike.tuning import Event


MOST_DAYS, MOST_BYTES = 90, 256 * 2**20
"""Maximum age in days and maximum total size in bytes of the logs beside a store. Chosen by hand."""

LATEST = 20
"""Number of logs that are never removed, whatever their age and size. Chosen by hand."""

_NAME = re.compile(r"\d{8}T\d{6}-\d+(-\d+)?\.jsonl")
"""Pattern of the names of logs."""


class RunLog:
    """The log of one run; a context manager that creates the file on entry.

    Args:
        store: Path of the store; None for no log.

    Attributes:
        path: Path of the log after entry; None if there is none.
        lost: Why the log is incomplete; empty if it is complete.
    """

    def __init__(self, store: str | os.PathLike[str] | None) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        place = path_of(store)
        self.path = None if place is None else Path(f"{place}.logs") / f"{stamp}-{os.getpid()}.jsonl"
        self.lost = ""
        self._file: TextIO | None = None
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        if self.path is not None:
            try:
                self.path.parent.mkdir(exist_ok=True)
                self._create(self.path)
                _remove_old(self.path.parent)
            except OSError as error:
                self.lost = first_line(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.write("error", message=f"{type(error).__name__}: {error}")
        self._close()

    def write(self, event: str, **values: Any) -> None:
        """Write one line: seconds since the start (monotonic), UTC, the event and its values."""
        if self._file is None:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"seconds": round(time.monotonic() - self._started, 3), "time": now, "event": event, **values}
        try:
            self._file.write(json.dumps(_finite(line)) + "\n")
            self._file.flush()
        except (OSError, ValueError, TypeError) as error:  # a closed file, a value that JSON cannot hold
            self.lost = first_line(error)
            self._close()

    def event(self, event: Event) -> None:
        """Write an event of the session: a measurement, or the start of a round."""
        state, measurement = event.state, event.measurement
        values = {"task": state.task.name, "workload": state.task.key, "trials": event.budget.spent_trials}
        if measurement is None or event.candidate is None:
            self.write("round", **values, best=state.best[0] if state.best else None)
            return
        candidate = event.candidate
        self.measured(
            measurement,
            **values,
            sketch=candidate.sketch.index,
            point=list(candidate.point),
            origin=candidate.origin,
            score=candidate.score,
        )

    def measured(self, measurement: Measurement, **values: Any) -> None:
        """Write a measurement and what was measured."""
        self.write(
            "measured",
            **values,
            status=measurement.status.value,
            latency=measurement.seconds,
            repeats=list(measurement.repeats),
            error=measurement.error,
            message=measurement.message,
            build_seconds=measurement.build_seconds,
            run_seconds=measurement.run_seconds,
        )

    def end(self, report: Report) -> list[str]:
        """Write a run's report, its last event, and return why the log is incomplete: one sentence, or none."""
        self.write("end", report=report.to_json())
        return [f"the run's log could not be written: {self.lost}"] if self.lost else []

    def _create(self, path: Path) -> None:
        """Create a new file at the path, with a number appended if an earlier run of this second has that name."""
        for number in itertools.count(1):
            self.path = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
            with contextlib.suppress(FileExistsError):
                self._file = self.path.open("x", encoding="utf-8")
                return

    def _close(self) -> None:
        """Close the file and ignore errors."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # buffered text cannot be written
                file.close()


def _remove_old(folder: Path) -> None:
    """Remove logs beyond the limits."""
    logs = sorted(_logs(folder), key=lambda log: -log.used)
    for log in cache.beyond(logs[LATEST:], most_bytes=MOST_BYTES, most_days=MOST_DAYS):
        with contextlib.suppress(OSError):
            log.path.unlink()


def logs_of(store: str | os.PathLike[str]) -> list[cache.Entry]:
    """Return the logs of the runs that used a store."""
    place = path_of(store)
    return [] if place is None else _logs(Path(f"{place}.logs"))


def _logs(folder: Path) -> list[cache.Entry]:
    """Return the files of a folder that have the name of a log."""
    return [file for file in cache.files(folder) if _NAME.fullmatch(file.path.name)]


def _finite(value: Any) -> Any:
    """Replace inf and nan, which JSON lacks, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
