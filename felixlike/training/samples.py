"""Read the training data of a cost model, features and seconds, from record stores.

The input is stores. The output is a `Workload` for each task and device, and the number of skipped candidates by
reason. Tasks are restored from the stores, so neither models nor a list of workloads is needed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike.errors import InvalidOption, UnsupportedSketch
from felixlike.features import FeatureArray, formulas
from felixlike.frontend import Task
from felixlike.frontend.buffers import buffers_of
from felixlike.hardware import is_simulated_device, kind_of
from felixlike.records import Record, Store, StoredWorkload
from felixlike.records.record import UKERNELS
from felixlike.symbolic import Sketch, SpaceName, is_own, sketches, stored_sketch

Seconds = npt.NDArray[np.float64]
LogFeatures = npt.NDArray[np.float32]

FEWEST = 2
"""Smallest number of timed candidates of a workload, so that there is an order to learn."""


@dataclass(frozen=True, slots=True)
class Part:
    """Measured candidates of one sketch.

    Attributes:
        sketch: The sketch's key.
        own: Whether the sketch is of our own design space, not of MetaSchedule's.
        points: int64[n, variables].
        log_features: float32[n, stores, columns], log(1 + feature).
        seconds: float64[n], seconds per call; inf for failures.
    """

    sketch: str
    own: bool
    points: npt.NDArray[np.int64]
    log_features: LogFeatures
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Workload:
    """Measurements of one task on one device.

    Attributes:
        key: The task's key.
        name: The task's name, only for display.
        operator: Main operator of the task, without fused operators and sizes.
        identity: Text that is equal for one computation on all devices of a kind.
        device: Name of the device.
        target: TVM's text of the target.
        kind: Kind of the target ("cpu", "cuda").
        parts: Candidates by sketch.
    """

    key: str
    name: str
    operator: str
    identity: str
    device: str
    target: str
    kind: str
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(len(part.seconds) for part in self.parts)

    @property
    def seconds(self) -> Seconds:
        """Seconds per call of the candidates of all parts, float64[n]."""
        return np.concatenate([part.seconds for part in self.parts])

    @property
    def measured(self) -> int:
        """Number of candidates with a finite time."""
        return int(np.isfinite(self.seconds).sum())


@dataclass(slots=True)
class Samples:
    """Training data; `left_out` is the number of skipped candidates by reason."""

    workloads: list[Workload] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return sum(map(len, self.workloads))


def nothing_to_learn(where: str) -> InvalidOption:
    """Return the InvalidOption for samples without any workload; `where` is their source."""
    return InvalidOption(
        "no workload has two measured candidates",
        where=where,
        remedy="collect measurements with felixlike collect",
    )


def operator_of(name: str) -> str:
    """Return a task's main operator, for example "conv2d" for "fused_conv2d_add_relu1"; else "elementwise"."""
    words = re.sub(r"\d+$", "", name).removeprefix("fused_")
    for operator in _OPERATORS:
        if re.search(rf"(^|_){operator}(\d*)(_|$)", words):
            return operator
    return "elementwise"


_OPERATORS = (
    *("conv1d_transpose", "conv2d_transpose", "conv3d_transpose", "conv1d", "conv2d", "conv3d", "matmul"),
    *("log_softmax", "softmax", "layer_norm", "rms_norm", "group_norm", "max_pool2d", "avg_pool2d"),
    *("adaptive_avg_pool2d", "mean", "sum", "max", "variance"),
)
"""Main operators; the first one that a task's name contains is the task's."""


def restored(stored: StoredWorkload) -> Task | None:
    """Restore a task from a store's workload; return None if its module was lost or TVM cannot read it."""
    try:
        module, target = _tvm.load_function(stored.module), _tvm.Target(stored.target)
        flops = float(_tvm.estimate_tir_flops(module))
    except _tvm.NotAllowed:
        return None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None
    return Task(name=stored.name, module=module, target=target, weight=1.0, flops=flops, key=stored.task)


def read(stores: Iterable[Store], *, kind: str | None = None) -> Samples:
    """Read the measurements of stores.

    These are skipped and counted: measurements of simulated devices, workloads for another kind of target or whose
    module or target cannot be read, sketches and compute locations that are non-symbolic, points that do not belong to
    their sketch or that it rejects, times that are not positive numbers, and workloads with fewer than two timed
    candidates. A candidate that occurs several times on one device counts once, with its fastest time.

    Args:
        stores: The stores.
        kind: Kind of target to read ("cpu", "cuda"); None for all.

    Raises:
        StoreError: A store is damaged.
    """
    samples = Samples()
    gathered: dict[str, _Gathered] = {}
    for store in stores:
        for stored in store.workloads():
            known = gathered.setdefault(stored.task, _Gathered(stored))
            if not known.stored.module:  # lost in a damaged file; another store may have it
                known.stored = stored
        for record in store.measurements():
            if record.task in gathered:
                gathered[record.task].add(record, samples.left_out)
        for task, sketch, trace in store.values("sketches"):
            if task in gathered:
                gathered[task].traces[sketch] = trace
    for measurements in gathered.values():
        samples.workloads += measurements.workloads(kind, samples.left_out)
    return samples


class _Gathered:
    """The stores' measurements of one task."""

    def __init__(self, stored: StoredWorkload) -> None:
        self.stored = stored
        self._rows: dict[str, dict[str, dict[tuple[int, ...], float]]] = {}
        self.traces: dict[str, str] = {}

    def add(self, record: Record, left_out: Counter[str]) -> None:
        """Add a measurement, unless its device is simulated or it has no time."""
        if is_simulated_device(record.device):
            left_out["of a simulated device"] += 1
            return
        if record.sketch == UKERNELS:
            left_out["of kernels for dynamic sizes"] += 1
            return
        seconds = record.measurement.seconds
        if not seconds > 0:  # nan: checked only
            left_out["no usable time"] += 1
            return
        members = self._rows.setdefault(record.device, {}).setdefault(record.sketch, {})
        members[record.point] = min(seconds, members.get(record.point, math.inf))

    def workloads(self, kind: str | None, left_out: Counter[str]) -> list[Workload]:
        """Return a workload for each device; count skipped candidates in `left_out`."""
        task = restored(self.stored) if self._rows else None
        if task is None:
            left_out["workload cannot be read"] += self._count()
            return []
        if kind is not None and kind_of(task.target).device != kind:
            left_out["for another kind of target"] += self._count()
            return []
        measured = {name for by_sketch in self._rows.values() for name in by_sketch}
        sketches = stored_sketches(task, measured, self.traces)
        by_device = []
        for device, by_sketch in self._rows.items():
            parts = [_part(name, sketches[name], members, left_out) for name, members in by_sketch.items()]
            workload = Workload(
                key=task.key,
                name=task.name,
                operator=operator_of(task.name),
                identity=identity(task),
                device=device,
                target=str(task.target),
                kind=kind_of(task.target).device,
                parts=tuple(part for part in parts if part is not None),
            )
            if workload.parts and workload.measured >= FEWEST:
                by_device.append(workload)
            else:
                left_out["of a workload with fewer than two times"] += len(workload)
        return by_device

    def _count(self) -> int:
        """Return the number of candidates."""
        return sum(len(members) for by_sketch in self._rows.values() for members in by_sketch.values())


def identity(task: Task) -> str:
    """Return the text that a computation has on all targets of a kind: its name and the shapes of its buffers."""
    shapes = [[int(extent) for extent in buffer.shape] for buffer in buffers_of(task.module["main"], where=task.name)]
    return f"{re.sub(r'[0-9]+$', '', task.name)} {shapes}"


def stored_sketches(task: Task, wanted: Iterable[str], traces: dict[str, str]) -> dict[str, Sketch | None]:
    """Return each sketch by its key: from the current design spaces, else from its trace, else None.

    Args:
        task: The task.
        wanted: Keys of the sketches.
        traces: Stored traces of the task's sketches by key.
    """
    current = {sketch.key: sketch for sketch in sketches(task, space=SpaceName.ALL)}
    return {key: current.get(key) or (stored_sketch(task, traces[key]) if key in traces else None) for key in wanted}


def _part(
    name: str, sketch: Sketch | None, members: dict[tuple[int, ...], float], left_out: Counter[str]
) -> Part | None:
    """Return the usable candidates of one sketch, or None; count the others in `left_out`."""
    if sketch is None:
        left_out["sketch cannot be read"] += len(members)
        return None
    if not sketch.is_symbolic:
        left_out["sketch not understood symbolically"] += len(members)
        return None
    width = len(sketch.variables)
    usable = [point for point in members if len(point) == width]
    left_out["point of another sketch"] += len(members) - len(usable)
    points = np.array(usable, dtype=np.int64).reshape(len(usable), width)
    seconds = np.array([members[point] for point in usable])
    valid = np.isfinite(seconds)  # a candidate that ran was valid, even if the current constraints reject it
    valid[~valid] = sketch.valid(points[~valid])
    left_out["refused"] += int((~valid).sum())
    features, symbolic = _features(sketch, points[valid])
    left_out["place not understood symbolically"] += int((~symbolic).sum())
    if not symbolic.any():
        return None
    return Part(
        name, is_own(sketch), points[valid][symbolic], np.log1p(features).astype(np.float32), seconds[valid][symbolic]
    )


def _features(sketch: Sketch, points: npt.NDArray[np.int64]) -> tuple[FeatureArray, npt.NDArray[np.bool_]]:
    """Return the exact features of the points at symbolic compute locations, and the mask of these points."""
    feature_formulas = formulas(sketch)
    symbolic = np.zeros(len(points), dtype=bool)
    evaluated: list[tuple[npt.NDArray[np.int64], FeatureArray]] = []
    for _, rows in sketch.by_structure(points):
        try:
            evaluated.append((rows, feature_formulas.evaluate(points[rows])))
            symbolic[rows] = True
        except UnsupportedSketch:
            continue
    features = np.zeros((len(points), len(feature_formulas.stores), len(feature_formulas.names)))
    for rows, values in evaluated:
        features[rows] = values
    return features[symbolic], symbolic


def by_operator(workloads: Sequence[Workload]) -> dict[str, list[Workload]]:
    """Group workloads by operator."""
    groups: dict[str, list[Workload]] = {}
    for workload in workloads:
        groups.setdefault(workload.operator, []).append(workload)
    return groups
