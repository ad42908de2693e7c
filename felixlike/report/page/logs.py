"""The logs of runs, read while they are written.

In: the folder beside a store. Out: for each run how it stands, and what was predicted and measured. What is no line of
a log of ours is passed over: logs are for people, and may be edited.
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
"""Bytes read of a log at a time; a run of a day writes a few."""


class RunRead:
    """One run, as far as its log goes.

    seconds: of the run at the last line.  time: UTC of it.  start: what the run began with, empty where the log does
    not say.  importing: seconds until then.  predicted: (scores, latencies) by task key.  report: of a run that has
    come to its end.  error: what ended another one."""

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
        """Read what is new: lines that are complete."""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read(_AT_ONCE)
            whole = content.rfind(b"\n") + 1
            self._offset += whole
            for line in content[:whole].splitlines():
                with suppress(ValueError, RecursionError):
                    self._take(json.loads(line))

    def calls(self) -> dict[str, float]:
        """How often the model calls each task, by its key."""
        found = self.start.get("calls")
        given = found if isinstance(found, dict) else {}
        return {key: float(count) for key, count in given.items() if is_number(count) and count > 0}

    def names(self) -> dict[str, str]:
        """The tasks' names, by their keys."""
        found = self.start.get("tasks")
        return {key: str(name) for key, name in found.items()} if isinstance(found, dict) else {}

    def text(self, field: str) -> str:
        """What the run began with, if that is a text."""
        found = self.start.get(field)
        return found if isinstance(found, str) else ""

    def _take(self, line: Any) -> None:
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
        self.trials += 1
        key, score, latency = line.get("workload"), line.get("score"), line.get("latency")
        if line.get("status") != "ok" or not isinstance(key, str):
            return
        if is_number(score) and is_number(latency):
            scores, latencies = self.predicted.setdefault(key, ([], []))
            scores.append(float(score))
            latencies.append(float(latency))


class Logs:
    """All runs of a store, the latest last."""

    def __init__(self, store: Path) -> None:
        self._folder = Path(f"{store}.logs")
        self._runs: dict[Path, RunRead] = {}

    def update(self) -> list[RunRead]:
        """The runs as they stand now."""
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix == ".jsonl")
        except OSError:
            paths = []
        self._runs = {path: self._runs.get(path) or RunRead(path) for path in paths}
        for run in self._runs.values():
            run.update()
        return list(self._runs.values())
