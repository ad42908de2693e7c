"""Load the training data of the simulated devices: every candidate of the shipped stores as a row of TVM's features.

Input: data/. Output: `Measured`, cached in out/simulated/, because computing 20,000 schedules takes ten minutes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from felixlike.errors import FelixlikeError
from felixlike.frontend import Task
from felixlike.measure.evaluator import lower_quartile
from felixlike.measure.measurement import Status
from felixlike.measure.simulated.surrogate import features_of, row_of
from felixlike.records import Record, Store
from felixlike.symbolic import is_own
from felixlike.training.packed import opened
from felixlike.training.samples import identity, operator_of, restored, stored_sketches

DATA = Path(__file__).resolve().parent.parent / "data"
KEPT = Path("out") / "simulated"
STORES = {
    "zen5": "measurements-cpu.sqlite.xz",
    "emerald-rapids": "measurements-cpu-intel.sqlite.xz",
    "h100": "measurements-h100.sqlite.xz",
}
"""Store by simulated device."""

_AT_ONCE = 64
_FEW = 8
"""Number of repeats from which on the two halves are compared."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Arrays with one entry per candidate.

    `rows` is float32[n, columns], for column 0 of the devices. `seconds` of a call are inf if it exceeded the time
    limit. `builds` are build seconds: inf if building exceeded the limit, 0 if not recorded. `flops` are those of the
    task and `task` is the workload's number. `own` marks felixlike's own space. `identity` and `operator` describe
    the workload. `noise` is the log-ratio of the times of the two halves of the batches, nan if there are too few.
    """

    rows: npt.NDArray[np.float32]
    seconds: npt.NDArray[np.float64]
    builds: npt.NDArray[np.float64]
    flops: npt.NDArray[np.float64]
    task: npt.NDArray[np.int64]
    own: npt.NDArray[np.bool_]
    identity: npt.NDArray[np.str_]
    operator: npt.NDArray[np.str_]
    noise: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def some(self, chosen: npt.NDArray[np.bool_]) -> Measured:
        """Return the chosen entries."""
        return Measured(*(getattr(self, field.name)[chosen] for field in fields(self)))


def together(parts: Sequence[Measured]) -> Measured:
    """Concatenate the entries of several devices and renumber their tasks."""
    columns = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Measured)}
    shift = np.cumsum([0, *(int(part.task.max()) + 1 for part in parts[:-1])])
    columns["task"] = columns["task"] + np.repeat(shift, [len(part) for part in parts])
    return Measured(**columns)


def measured(device: str) -> Measured:
    """Return all readable candidates of a device's store."""
    cache_file = KEPT / f"{device}.npz"
    if not cache_file.exists():
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        read_candidates = _read(device)
        np.savez_compressed(cache_file, **{f.name: getattr(read_candidates, f.name) for f in fields(Measured)})
    with np.load(cache_file, allow_pickle=False) as arrays:
        return Measured(**{name: arrays[name] for name in arrays.files})


def _read(device: str) -> Measured:
    lines: list[tuple[object, ...]] = []
    left_out: Counter[str] = Counter()
    with opened(DATA / STORES[device]) as store:
        traces: dict[str, dict[str, str]] = defaultdict(dict)
        for task, sketch, trace in store.values("sketches"):
            traces[task][sketch] = trace
        for number, stored in enumerate(store.workloads()):
            restored_task = restored(stored)
            if restored_task is not None:
                task_columns = (restored_task.flops, number), (identity(restored_task), operator_of(restored_task.name))
                for record, is_own_space, row in _rows(restored_task, store, traces[restored_task.key], left_out):
                    lines.append(
                        (row, *_times(record), *task_columns[0], is_own_space, *task_columns[1], _noise(record))
                    )
            if number % 10 == 0:
                print(f"{device}: {number}, {len(lines)} rows, left out: {dict(left_out)}", flush=True)
    return Measured(*(np.array(column) for column in zip(*lines, strict=True)))


def _rows(
    task: Task, store: Store, traces: dict[str, str], left_out: Counter[str]
) -> Iterator[tuple[Record, bool, npt.NDArray[np.float32]]]:
    by_sketch: dict[str, list[Record]] = defaultdict(list)
    for record in store.measurements(task):
        by_sketch[record.sketch].append(record)
    sketches_by_key = stored_sketches(task, by_sketch, traces)
    for key, records in by_sketch.items():
        sketch = sketches_by_key[key]
        if sketch is None:
            left_out["sketch cannot be read"] += len(records)
            continue
        scheduled = []
        for record in records:
            try:
                scheduled.append((record, sketch.schedule(record.point)))
            except FelixlikeError:
                left_out["refused"] += 1
        for start in range(0, len(scheduled), _AT_ONCE):
            some = scheduled[start : start + _AT_ONCE]
            for (record, _), features in zip(some, features_of(task, [schedule for _, schedule in some]), strict=True):
                if features is None:
                    left_out["no features"] += 1
                else:
                    yield record, is_own(sketch), row_of(features, task.flops, 0)


def _times(record: Record) -> tuple[float, float]:
    """Return (seconds, build seconds)."""
    measurement = record.measurement
    never_ran = measurement.status is not Status.OK and not measurement.run_seconds
    return measurement.seconds, float("inf") if never_ran else measurement.build_seconds


def _noise(record: Record) -> float:
    """Return the log-ratio of the times of two halves of the batches, or of two batches if there are few."""
    repeats = record.measurement.repeats
    if len(repeats) >= _FEW:
        return float(np.log(lower_quartile(repeats[::2]) / lower_quartile(repeats[1::2])))
    return float(np.log(repeats[0] / repeats[1])) if len(repeats) >= 3 else float("nan")
