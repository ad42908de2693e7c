"""What the simulated devices are fitted to: every candidate of the shipped stores as a row of TVM's features.

In: data/. Out: `Measured`, kept in out/simulated/ once made, since 20,000 schedules take ten minutes to make again.
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
from felixlike.training.packed import opened
from felixlike.training.samples import identity, is_own, operator_of, restored, stored_sketches

DATA = Path(__file__).resolve().parent.parent / "data"
KEPT = Path("out") / "simulated"
STORES = {
    "zen5": "measurements-cpu.sqlite.xz",
    "emerald-rapids": "measurements-cpu-intel.sqlite.xz",
    "h100": "measurements-h100.sqlite.xz",
}
"""By simulated device."""

_AT_ONCE = 64
_FEW = 8
"""Repeats from which on halves of them are told apart."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A line for each candidate.  rows: float32[n, columns], for column 0 of the devices.  seconds: of a call, inf
    where it took too long to run.  builds: seconds, inf where it took too long to build, 0 where nobody noted it.
    flops: of its task.  task: number of its workload.  own: of our own space.  identity, operator: of its workload.
    noise: log-ratio of what counts in one half of its batches to the other half, nan where there are too few."""

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
        """The lines that are chosen."""
        return Measured(*(getattr(self, field.name)[chosen] for field in fields(self)))


def together(parts: Sequence[Measured]) -> Measured:
    """Several devices' lines, one after the other; tasks keep numbers of their own."""
    found = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Measured)}
    shift = np.cumsum([0, *(int(part.task.max()) + 1 for part in parts[:-1])])
    found["task"] = found["task"] + np.repeat(shift, [len(part) for part in parts])
    return Measured(**found)


def measured(device: str) -> Measured:
    """All that can be read of a device's store."""
    kept = KEPT / f"{device}.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        found = _read(device)
        np.savez_compressed(kept, **{f.name: getattr(found, f.name) for f in fields(Measured)})
    with np.load(kept, allow_pickle=False) as arrays:
        return Measured(**{name: arrays[name] for name in arrays.files})


def _read(device: str) -> Measured:
    lines: list[tuple[object, ...]] = []
    left_out: Counter[str] = Counter()
    with opened(DATA / STORES[device]) as store:
        traces: dict[str, dict[str, str]] = defaultdict(dict)
        for task, sketch, trace in store.values("sketches"):
            traces[task][sketch] = trace
        for number, stored in enumerate(store.workloads()):
            found = restored(stored)
            if found is not None:
                about = (found.flops, number), (identity(found), operator_of(found.name))
                for record, own, row in _rows(found, store, traces[found.key], left_out):
                    lines.append((row, *_times(record), *about[0], own, *about[1], _noise(record)))
            if number % 10 == 0:
                print(f"{device}: {number}, {len(lines)} rows, left out: {dict(left_out)}", flush=True)
    return Measured(*(np.array(column) for column in zip(*lines, strict=True)))


def _rows(
    task: Task, store: Store, traces: dict[str, str], left_out: Counter[str]
) -> Iterator[tuple[Record, bool, npt.NDArray[np.float32]]]:
    by_sketch: dict[str, list[Record]] = defaultdict(list)
    for record in store.measurements(task):
        by_sketch[record.sketch].append(record)
    found = stored_sketches(task, by_sketch, traces)
    for key, records in by_sketch.items():
        sketch = found[key]
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
    """(seconds, build seconds)"""
    found = record.measurement
    never_ran = found.status is not Status.OK and not found.run_seconds
    return found.seconds, float("inf") if never_ran else found.build_seconds


def _noise(record: Record) -> float:
    """How far two halves of the batches differ in what counts of them; of few batches, two of them."""
    repeats = record.measurement.repeats
    if len(repeats) >= _FEW:
        return float(np.log(lower_quartile(repeats[::2]) / lower_quartile(repeats[1::2])))
    return float(np.log(repeats[0] / repeats[1])) if len(repeats) >= 3 else float("nan")
