"""A run's report as plain data: what was done to each task, and what came of it.

In: numbers and words from a session. Out: `Report`, which prints itself, and goes into an artefact as JSON and back.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from felixlike.errors import InvalidArtefact


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task.

    name, weight (call sites), flops of a call.  how: "measured", "unmeasured" or "untuned".  sketch: index of the
    chosen sketch, None if untuned.  sketches: how many there are.  seconds: best latency of a call, nan where not
    measured.  trials: candidates measured in this run.  failures: how many of them were not right, by status.  error:
    maximum relative error of the chosen schedule against the float64 reference, None where it could not be had.
    point: the chosen schedule's variables by name.  sampled: for sketches that were only sampled, why they are not
    understood symbolically.  note: what else the user should know."""

    name: str
    workload: str
    weight: float
    flops: float
    how: str
    sketch: int | None
    sketches: int
    seconds: float
    trials: int
    failures: dict[str, int]
    error: float | None
    point: dict[str, int]
    sampled: dict[str, str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run.

    model: its name.  tasks: heaviest first.  trials, rounds, seconds: spent on tuning.  total_seconds: import,
    compilation and checks included.  error: maximum relative error of the whole compiled model, and reference:
    against what ("float64 eager", …). stopped: why tuning ended.  device, target, versions: where this holds.  seed:
    of the run.  recalled: candidates that earlier runs had measured, and that count towards the limits."""

    model: str
    tasks: tuple[TaskReport, ...]
    trials: int
    rounds: int
    seconds: float
    total_seconds: float
    error: float
    reference: str
    stopped: str
    device: str
    target: str
    versions: dict[str, str]
    seed: int
    recalled: int = 0

    def __str__(self) -> str:
        from felixlike.report.tables import report_text

        return report_text(self)

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that are not finite become None."""
        return {str(k): _plain(v) for k, v in dataclasses.asdict(self).items()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """The inverse of `to_json`. Raises InvalidArtefact for data that is no report."""
        try:
            tasks = tuple(TaskReport(**{**t, "seconds": _number(t["seconds"])}) for t in data["tasks"])
            return Report(**{**data, "tasks": tasks, "error": _number(data["error"])})
        except (KeyError, TypeError) as error:
            raise InvalidArtefact(f"its report is damaged ({error})", where="report") from error


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
