"""Read the logs of runs, also while they are written.

Input: the folder beside a store. Output: the state of each run, with its predictions and measurements. Lines that are
not valid log lines are skipped, since users may edit logs.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from felixlike.errors import FelixlikeError
from felixlike.report.report_data import ReportData
from felixlike.report.validation import is_number

_AT_ONCE = 64 * 2**20
"""Maximum bytes read of a log per update. Chosen by hand: a run of a day writes a few such blocks at most."""


class RunRead:
    """One run, as far as its log goes.

    Attributes:
        path: Path of the log.
        seconds: Seconds of the run at the last line.
        time: UTC of the last line.
        start: Values of the "start" event; empty if the log has none.
        importing: Seconds until the "start" event.
        predicted: (scores, latencies) by task key.
        trials: Candidates measured.
        report: Report of a completed run.
        error: Error that ended the run; empty without one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds = self.importing = 0.0
        self.time = ""
        self.start: dict[str, Any] = {}
        self.predicted: dict[str, tuple[list[float], list[float]]] = {}
        self.trials = 0
        self.report: ReportData | None = None
        self.error = ""
        self._offset = 0

    def update(self) -> None:
        """Read the complete lines that are new."""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read(_AT_ONCE)
            whole = content.rfind(b"\n") + 1
            self._offset += whole
            for line in content[:whole].splitlines():
                with suppress(ValueError, RecursionError):
                    self._take(json.loads(line))

    def calls(self) -> dict[str, float]:
        """Return the number of call sites of each task, by its key."""
        calls = self.start.get("calls")
        counts = calls if isinstance(calls, dict) else {}
        return {key: float(count) for key, count in counts.items() if is_number(count) and count > 0}

    def names(self) -> dict[str, str]:
        """Return the names of the tasks, by their keys."""
        tasks = self.start.get("tasks")
        return {key: str(name) for key, name in tasks.items()} if isinstance(tasks, dict) else {}

    def text(self, field: str) -> str:
        """Return a field of the "start" event if it is a string, else an empty string."""
        value = self.start.get(field)
        return value if isinstance(value, str) else ""

    def _take(self, line: Any) -> None:
        """Process one event of the log."""
        if not isinstance(line, dict):
            return
        if is_number(line.get("seconds")):
            self.seconds = float(line["seconds"])
        if isinstance(line.get("time"), str):
            self.time = line["time"]
        match line.get("event"):
            case "start":
                self.start, self.importing = line, self.seconds
            case "measured":
                self._measured(line)
            case "end":
                with suppress(FelixlikeError):
                    self.report = ReportData.from_json(line.get("report", {}))
            case "error":
                self.error = str(line.get("message", "")) or "an error"

    def _measured(self, line: dict[str, Any]) -> None:
        """Process a measurement."""
        self.trials += 1
        key, score, latency = line.get("workload"), line.get("score"), line.get("latency")
        if line.get("status") != "ok" or not isinstance(key, str):
            return
        if is_number(score) and is_number(latency):
            scores, latencies = self.predicted.setdefault(key, ([], []))
            scores.append(float(score))
            latencies.append(float(latency))


class Logs:
    """The logs of all runs of a store, latest last."""

    def __init__(self, store: Path) -> None:
        self._folder = Path(f"{store}.logs")
        self._runs: dict[Path, RunRead] = {}

    def update(self) -> list[RunRead]:
        """Read what is new and return all runs."""
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix == ".jsonl")
        except OSError:
            paths = []
        self._runs = {path: self._runs.get(path) or RunRead(path) for path in paths}
        for run in self._runs.values():
            run.update()
        return list(self._runs.values())
