"""Stores of measurements → what a cost model learns from: features and seconds, workload by workload.

In: stores. Out: a `Workload` for each task and device, and what was left out, counted by reason. A task is read from
what its store keeps of it, so that no model and no list of workloads is needed.
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
from felixlike.symbolic import Sketch, SpaceName, sketches, stored_sketch

Seconds = npt.NDArray[np.float64]
LogFeatures = npt.NDArray[np.float32]

FEWEST = 2
"""Candidates that have a time, of a workload from which an order can be learned."""


@dataclass(frozen=True, slots=True)
class Part:
    """The measured candidates of one sketch.

    own: of our own rules' space, not MetaSchedule's.  log_features: float32[n, stores, columns], log(1 + feature).
    seconds: float64[n] a call, inf for failures."""

    sketch: str
    own: bool
    points: npt.NDArray[np.int64]
    log_features: LogFeatures
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Workload:
    """One task as measured on one device.

    key: the task's.  name: for people.  operator: what it computes, without what is fused to it and without sizes.
    identity: the same for one computation on all devices of a kind.  device: its name.
    target: TVM's text.  kind: of target ("cpu", "cuda")."""

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
        """float64[n] of all parts, one after the other."""
        return np.concatenate([part.seconds for part in self.parts])

    @property
    def measured(self) -> int:
        """How many candidates have a time."""
        return int(np.isfinite(self.seconds).sum())


@dataclass(slots=True)
class Samples:
    """What was read.  left_out: how many candidates were not, by reason."""

    workloads: list[Workload] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return sum(map(len, self.workloads))


def nothing_to_learn(where: str) -> InvalidOption:
    """The error of samples without any workload.  where: they came from."""
    return InvalidOption(
        "there is no workload with two measured candidates", where=where, remedy="collect some: felixlike collect"
    )


def operator_of(name: str) -> str:
    """ "conv2d" for "fused_conv2d_add_relu1": the first of the fused operators that multiplies, sums or moves."""
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


def restored(stored: StoredWorkload) -> Task | None:
    """The task that a store describes; None where its module was lost or TVM cannot read it."""
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
    """All measurements of these stores, those for one kind of target ("cpu", "cuda") if given.

    Left out and counted: what a simulated device answered, workloads whose module or target cannot be read, sketches
    that are not understood symbolically, points that are none of their sketch, times that are no positive numbers,
    workloads with fewer than two candidates that have a time. A candidate that several stores hold, or that was
    measured twice on one device, counts once, with its fastest time. Raises StoreError for a damaged store."""
    found = Samples()
    gathered: dict[str, _Gathered] = {}
    for store in stores:
        for stored in store.workloads():
            known = gathered.setdefault(stored.task, _Gathered(stored))
            if not known.stored.module:  # lost with a damaged file, and here again
                known.stored = stored
        for record in store.measurements():
            if record.task in gathered:
                gathered[record.task].add(record, found.left_out)
        for task, sketch, trace in store.values("sketches"):
            if task in gathered:
                gathered[task].traces[sketch] = trace
    for each in gathered.values():
        found.workloads += each.workloads(kind, found.left_out)
    return found


class _Gathered:
    """What stores hold of one task."""

    def __init__(self, stored: StoredWorkload) -> None:
        self.stored = stored
        self._rows: dict[str, dict[str, dict[tuple[int, ...], float]]] = {}
        self.traces: dict[str, str] = {}

    def add(self, record: Record, left_out: Counter[str]) -> None:
        """Take a measurement, unless it says nothing."""
        if is_simulated_device(record.device):
            left_out["of a simulated device"] += 1
            return
        seconds = record.measurement.seconds
        if not seconds > 0:  # nan: checked only
            left_out["no usable time"] += 1
            return
        members = self._rows.setdefault(record.device, {}).setdefault(record.sketch, {})
        members[record.point] = min(seconds, members.get(record.point, math.inf))

    def workloads(self, kind: str | None, left_out: Counter[str]) -> list[Workload]:
        """One for each device."""
        task = restored(self.stored) if self._rows else None
        if task is None:
            left_out["workload cannot be read"] += self._count()
            return []
        if kind is not None and kind_of(task.target).device != kind:
            left_out["for another kind of target"] += self._count()
            return []
        measured = {name for by_sketch in self._rows.values() for name in by_sketch}
        sketches = stored_sketches(task, measured, self.traces)
        found = []
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
                found.append(workload)
            else:
                left_out["of a workload with fewer than two times"] += len(workload)
        return found

    def _count(self) -> int:
        return sum(len(members) for by_sketch in self._rows.values() for members in by_sketch.values())


def identity(task: Task) -> str:
    """What is the same for a computation on all targets of a kind: its name, and the sizes of its buffers."""
    shapes = [[int(extent) for extent in buffer.shape] for buffer in buffers_of(task.module["main"], where=task.name)]
    return f"{re.sub(r'[0-9]+$', '', task.name)} {shapes}"


def stored_sketches(task: Task, wanted: Iterable[str], traces: dict[str, str]) -> dict[str, Sketch | None]:
    """Each sketch by its key: from today's spaces where they still make it, else from its trace; None without either.

    traces: of the task's sketches, as a store keeps them."""
    made = {sketch.key: sketch for sketch in sketches(task, space=SpaceName.ALL)}
    return {key: made.get(key) or (stored_sketch(task, traces[key]) if key in traces else None) for key in wanted}


def _part(
    name: str, sketch: Sketch | None, members: dict[tuple[int, ...], float], left_out: Counter[str]
) -> Part | None:
    if sketch is None:
        left_out["sketch cannot be read"] += len(members)
        return None
    if not sketch.understood:
        left_out["sketch not understood symbolically"] += len(members)
        return None
    width = len(sketch.variables)
    fitting = [point for point in members if len(point) == width]
    left_out["point of another sketch"] += len(members) - len(fitting)
    points = np.array(fitting, dtype=np.int64).reshape(len(fitting), width)
    seconds = np.array([members[point] for point in fitting])
    good = np.isfinite(seconds)  # what ran was valid, whatever today's model of it says
    good[~good] = sketch.valid(points[~good])
    left_out["refused"] += int((~good).sum())
    features, kept = _features(sketch, points[good])
    left_out["place not understood symbolically"] += int((~kept).sum())
    if not kept.any():
        return None
    return Part(name, is_own(sketch), points[good][kept], np.log1p(features).astype(np.float32), seconds[good][kept])


def _features(sketch: Sketch, points: npt.NDArray[np.int64]) -> tuple[FeatureArray, npt.NDArray[np.bool_]]:
    """Exact features of the points that have any, and which those are: some compute locations are not understood."""
    made = formulas(sketch)
    kept = np.zeros(len(points), dtype=bool)
    found: list[tuple[npt.NDArray[np.int64], FeatureArray]] = []
    for _, rows in sketch.by_structure(points):
        try:
            found.append((rows, made.evaluate(points[rows])))
            kept[rows] = True
        except UnsupportedSketch:
            continue
    features = np.zeros((len(points), len(made.stores), len(made.names)))
    for rows, values in found:
        features[rows] = values
    return features[kept], kept


def is_own(sketch: Sketch) -> bool:
    """Whether a sketch says itself which loops are parallel: ours do, MetaSchedule's leave it to a postprocessor, or to
    the binding of threads."""
    return all(postprocessor.name not in _METASCHEDULES for postprocessor in sketch.postprocessors)


_METASCHEDULES = ("RewriteParallelVectorizeUnroll", "RewriteCooperativeFetch", "RewriteUnboundBlock")
"""Postprocessors that only MetaSchedule's own spaces have."""


def by_operator(workloads: Sequence[Workload]) -> dict[str, list[Workload]]:
    """Workloads by what they compute."""
    found: dict[str, list[Workload]] = {}
    for workload in workloads:
        found.setdefault(workload.operator, []).append(workload)
    return found
