"""Hold the report of a run as plain data: what was done to each task, and the result.

Inputs: numbers and strings of a session. Output: `ReportData`, which artefacts save as JSON. `report.py` displays it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Self, TypeVar

from felixlike._util.wording import task_title
from felixlike.report.activity import Activity
from felixlike.report.task_history import TaskHistory
from felixlike.report.validation import damaged, shown

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The report of one task.

    Attributes:
        name: Name of the task.
        workload: Key of the task's workload.
        weight: Number of call sites in the model.
        flops: Floating-point operations of one call.
        how: "measured", "unmeasured" (predicted and checked only) or "untuned" (compiled without a schedule).
        sketch: Index of the chosen sketch; None if untuned.
        sketches: Number of sketches of the task.
        seconds: Best latency of one call, in seconds; nan if not measured.
        trials: Candidates measured in this run.
        failures: Number of failed candidates of this run, by status.
        error: Maximum relative error of the chosen schedule against the float64 reference; None if unknown.
        point: Variables of the chosen schedule, by name.
        sampled: For each sketch that was only sampled, why it is not symbolic.
        note: Further remark for the user.
        story: Data of the pictures; empty in reports of earlier versions.
        precision: Precision of the products of the chosen schedule. "float32", or another one if factors are rounded.
        recalled: Candidates that earlier runs had measured.
        recalled_failures: Number of those that had failed.
        predicted: Latency of the schedule that was predicted to be the fastest before the task was measured: of the
            first round's candidates, the one with the best prediction. nan if unknown or in reports of earlier
            versions.
        layers: What each call site computes, in names of the user's model: "layer1.0.conv1 + bn1 + relu". Empty if
            the model has no such names, and in reports of earlier versions.
        rounded: What is rounded to `precision`: "factors" of products, or only "weights". Empty for float32, and in
            reports of earlier versions.
        spent: Seconds of the run that were spent on this task alone, by step. What several tasks wait for at a time is
            in the run's `spent` only.
    """

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
    predicted: float = math.nan
    layers: tuple[str, ...] = ()
    rounded: str = ""
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the layers of the first call site and the number of other ones, or the task's name."""
        return task_title(self.layers, self.name)


@dataclass(frozen=True, slots=True)
class ReportData:
    """The report of one run as plain data.

    Attributes:
        model: Name of the model.
        tasks: Reports of the tasks, heaviest first.
        trials: Candidates measured while tuning.
        rounds: Rounds of tuning.
        seconds: Seconds of tuning.
        total_seconds: Seconds of the whole run, including import, compilation and verification.
        error: Maximum relative error of the whole compiled model.
        reference: What `error` compares with ("float64", …); empty if the model was not compared.
        stopped: Why tuning ended.
        device: Device that the latencies hold for.
        target: Target that the latencies hold for.
        versions: Versions of packages, by name.
        seed: Seed of the run.
        recalled: Candidates that earlier runs had measured. They count towards the limits.
        note: Further remark for the user.
        spent: Seconds by step of the run, which add up to `total_seconds`; empty in reports of earlier versions.
        activity: What the run's processes did over time; empty in reports of earlier versions.
        precision: Requested precision of products. Each task has the precision that it uses.
        latency: Median seconds of a whole call of the tuned model on the example inputs, on this machine. This value
            and the next five are nan if unknown, and in reports of earlier versions.
        latency_low: First quartile of these seconds.
        latency_high: Third quartile of these seconds.
        eager: Median seconds of a whole call of the original in eager PyTorch, with `compare=True`.
        eager_low: First quartile of these seconds.
        eager_high: Third quartile of these seconds.
        another_percent: Seconds of tuning after which the sum of all kernels is expected to be a percent less, at the
            pace of the latest rounds; -1 if these found nothing faster, nan if unknown, and in reports of earlier
            versions.
        changed: Rows of 2-D outputs whose largest element has another place than in the reference: changed classes.
        rows: All such rows.
    """

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
    activity: Activity = field(default_factory=Activity)
    precision: str = "float32"
    latency: float = math.nan
    latency_low: float = math.nan
    latency_high: float = math.nan
    eager: float = math.nan
    eager_low: float = math.nan
    eager_high: float = math.nan
    another_percent: float = math.nan
    changed: int = 0
    rows: int = 0

    @property
    def speedup(self) -> float:
        """Seconds of a call in eager PyTorch divided by those of the tuned model; nan if either is unknown."""
        return self.eager / self.latency

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data for JSON.

        Returns:
            A dictionary. Numbers that are not finite are None.
        """
        data: dict[str, Any] = {str(k): _plain(v) for k, v in dataclasses.asdict(replace(self, tasks=())).items()}
        data["tasks"] = [_task_json(task) for task in self.tasks]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Create a report from the data that `to_json` returned.

        Args:
            data: Decoded JSON.

        Raises:
            InvalidArtefact: The data is not a valid report.
        """
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
"""Accepted classes of a field's values, by the field's annotation."""


def _read(cls: type[_T], data: Any, place: str) -> _T:
    """Create a report from its JSON data and check that every field exists and has its type.

    None stands for float values that are not finite. Raises InvalidArtefact.
    """
    if not isinstance(data, dict):
        raise damaged(place or "it", f"is {shown(data)}, not an object")
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = f"{place}.{entry.name}" if place else entry.name
        if entry.name not in data:
            if entry.default is entry.default_factory is dataclasses.MISSING:
                raise damaged(name, "is missing")
            continue
        values[entry.name] = _value(data[entry.name], str(entry.type), name)
    unknown = sorted(set(data) - {entry.name for entry in dataclasses.fields(cls)})  # type: ignore[arg-type]
    if unknown:
        raise damaged(f"{place}.{unknown[0]}" if place else unknown[0], "is an unknown field")
    if cls is TaskReport and values["seconds"] <= 0:
        raise damaged(f"{place}.seconds", f"is {values['seconds']}, expected a positive number")
    return cls(**values)


def _value(value: Any, kind: str, name: str) -> Any:
    """Return a field's value from JSON. kind: the field's annotation. Raise InvalidArtefact for other types."""
    if kind == "TaskHistory":
        return TaskHistory.from_json(value, name)
    if kind == "Activity":
        return Activity.from_json(value, name)
    if kind == "tuple[str, ...]":
        return _strings(value, name)
    if kind == "float" and value is None:
        return math.nan
    if kind.startswith("dict["):
        _check_dict(value, kind, name)
    elif kind in _KINDS and (isinstance(value, bool) or not isinstance(value, _KINDS[kind]) or _is_huge(value)):
        raise damaged(name, f"is {shown(value)}, expected {kind}")
    return value


def _check_dict(value: Any, kind: str, name: str) -> None:
    """Raise InvalidArtefact unless a value is a dictionary of strings or of integers, as `kind` says."""
    classes = _KINDS[kind.removeprefix("dict[str, ").removesuffix("]")]
    if not isinstance(value, dict) or any(type(part) not in classes or _is_huge(part) for part in value.values()):
        raise damaged(name, f"is {shown(value)}, expected {kind}")


def _strings(value: Any, name: str) -> tuple[str, ...]:
    """Return a list of strings as a tuple. Raise InvalidArtefact for anything else."""
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise damaged(name, f"is {shown(value)}, expected a list of strings")
    return tuple(value)


def _is_huge(value: Any) -> bool:
    """Return whether a value is an integer outside of 64 bits."""
    return isinstance(value, int) and abs(value) >= 2**63


def _of_type(data: Any, field: str, cls: type) -> Any:
    """Return a field of JSON data. Raise InvalidArtefact if its type differs."""
    if not isinstance(data, dict) or not isinstance(data.get(field), cls):
        raise damaged(field, f"is not a {cls.__name__}")
    return data[field]


def _task_json(task: TaskReport) -> dict[str, Any]:
    """Return a task's report as plain data. An empty history is omitted."""
    data = {entry.name: _plain(getattr(task, entry.name)) for entry in dataclasses.fields(task)}
    del data["story"]
    story = task.story.to_json()
    return data | ({"story": story} if story else {})


def _plain(value: Any) -> Any:
    """Convert a value to plain JSON data: tuples to lists, keys to strings, non-finite floats to None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
