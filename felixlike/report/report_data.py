"""A run's report as plain data: what was done to each task, and what came of it.

In: numbers and words from a session. Out: `ReportData`, which goes into an artefact as JSON and back. `report.py` shows
it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Self, TypeVar

from felixlike.report.task_history import TaskHistory
from felixlike.report.validation import damaged, shown

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task.

    name, weight (call sites), flops of a call.  how: "measured", "unmeasured" or "untuned".  sketch: index of the
    chosen sketch, None if untuned.  sketches: how many there are.  seconds: best latency of a call, nan where not
    measured.  trials: candidates measured in this run.  failures: how many of them were not right, by status.
    recalled, recalled_failures: candidates that earlier runs had measured, and how many of those were not right.
    error: maximum relative error of the chosen schedule against the float64 reference, None where it could not be had.
    point: the chosen schedule's variables by name.  sampled: for sketches that were only sampled, why they are not
    understood symbolically.  note: what else the user should know.  story: what pictures show; empty in reports of
    earlier versions.  precision: what the products of the chosen schedule are computed in: another one than "float32"
    only where it is for tensor cores."""

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
    story: TaskHistory = field(default_factory=TaskHistory)
    precision: str = "float32"
    recalled: int = 0
    recalled_failures: int = 0


@dataclass(frozen=True, slots=True)
class ReportData:
    """A whole run.

    model: its name.  tasks: heaviest first.  trials, rounds, seconds: spent on tuning.  total_seconds: import,
    compilation and checks included.  error: maximum relative error of the whole compiled model, and reference:
    against what ("float64", …; empty where it was not compared). stopped: why tuning ended.  device, target, versions:
    where this holds.  seed: of the run.  recalled: candidates that earlier runs had measured, and that count towards
    the limits.  note: what else the user should know.  spent: seconds by the steps of the run; empty in reports of
    earlier versions.  precision: of products, as it was asked for; tasks say what each of them has."""

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
    note: str = ""
    spent: dict[str, float] = field(default_factory=dict)
    precision: str = "float32"

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that are not finite become None."""
        data: dict[str, Any] = {str(k): _plain(v) for k, v in dataclasses.asdict(replace(self, tasks=())).items()}
        data["tasks"] = [_task_json(task) for task in self.tasks]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises InvalidArtefact for data that is no report."""
        tasks = _of_type(data, "tasks", list)
        fields = {**data, "tasks": tuple(_read(TaskReport, task, f"tasks[{i}]") for i, task in enumerate(tasks))}
        return _read(cls, fields, "")


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "int | None": (int, NoneType),
    "float | None": (int, float, NoneType),
}
"""Classes of a field's values, by its annotation."""


def _read(cls: type[_T], data: Any, place: str) -> _T:
    """A report from its JSON data: every field there is, of its kind.  Raises InvalidArtefact.

    Numbers that are not finite were written as None."""
    if not isinstance(data, dict):
        raise damaged(place or "it", f"is {shown(data)}, not an object")
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = f"{place}.{entry.name}" if place else entry.name
        if entry.name not in data:
            if entry.default is entry.default_factory is dataclasses.MISSING:
                raise damaged(name, "is missing")
            continue
        value, kind = data[entry.name], str(entry.type)
        if kind == "float" and value is None:
            value = math.nan
        if kind.startswith("dict["):
            _check_dict(value, kind, name)
        elif kind in _KINDS and (isinstance(value, bool) or not isinstance(value, _KINDS[kind]) or _is_huge(value)):
            raise damaged(name, f"is {shown(value)}, which is no {kind}")
        values[entry.name] = TaskHistory.from_json(value, name) if kind == "TaskHistory" else value
    unknown = sorted(set(data) - {entry.name for entry in dataclasses.fields(cls)})  # type: ignore[arg-type]
    if unknown:
        raise damaged(f"{place}.{unknown[0]}" if place else unknown[0], "is not known")
    if cls is TaskReport and values["seconds"] <= 0:
        raise damaged(f"{place}.seconds", f"is {values['seconds']}, which no task takes")
    return cls(**values)


def _check_dict(value: Any, kind: str, name: str) -> None:
    """dict[str, …], of strings or integers."""
    wanted = _KINDS[kind.removeprefix("dict[str, ").removesuffix("]")]
    if not isinstance(value, dict) or any(type(part) not in wanted or _is_huge(part) for part in value.values()):
        raise damaged(name, f"is {shown(value)}, which is no {kind}")


def _is_huge(value: Any) -> bool:
    """Whether an integer is larger than any that is counted here."""
    return isinstance(value, int) and abs(value) >= 2**63


def _of_type(data: Any, field: str, wanted: type) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get(field), wanted):
        raise damaged(field, f"is no {wanted.__name__}")
    return data[field]


def _task_json(task: TaskReport) -> dict[str, Any]:
    """A story is there if it has something to tell."""
    data = {entry.name: _plain(getattr(task, entry.name)) for entry in dataclasses.fields(task)}
    del data["story"]
    story = task.story.to_json()
    return data | ({"story": story} if story else {})


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
