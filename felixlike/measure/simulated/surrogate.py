"""What a simulated device answers with: trees from TVM's own features of a scheduled program to the seconds of a call
and of a build, fitted to stores of measurements (`python -m benchmarks.simulated --fit`).

In: a task and schedules. Out: a `Guess` each. Neither features nor model are those that the search uses:
what it is judged by is not what it believes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike.costmodel.boosted_trees import Rows, Trees
from felixlike.errors import InvalidSchedule
from felixlike.frontend.constants import packing_blocks
from felixlike.frontend.task import Task
from felixlike.hardware import Simulated
from felixlike.measure.packing import cut
from felixlike.spaces import metaschedule

FOLDER = Path(__file__).with_name("data")
DEVICES = {"llvm": ("zen5", "emerald-rapids"), "cuda": ("h100",)}
"""Simulated devices that share their trees, by the kind of their target; which of them it is, is a column."""

_Number = TypeVar("_Number", float, npt.NDArray[np.float64])

_ARITHMETIC = slice(0, 7)
"""TVM's columns of floating-point operations: which store does most of the work."""
_MOST = 80.0
"""Logarithms beyond this are no counts."""


@dataclass(frozen=True, slots=True)
class Guess:
    """seconds: of a call.  build_seconds: of the build.  Both without noise."""

    seconds: float
    build_seconds: float


@dataclass(frozen=True, slots=True)
class Surrogate:
    """For one simulated device.

    column: of the device among those that share the trees.  call, build: to log(seconds ÷ `scale_of`) and
    log(build seconds).  noise: float64[n], quantiles of log(measured ÷ true seconds).  most_build, most_call: seconds
    that are guessed for candidates whose build, or call, took too long when they were measured; inf: none did."""

    column: int
    call: Trees
    build: Trees
    noise: npt.NDArray[np.float64]
    most_build: float
    most_call: float

    def guesses(self, task: Task, schedules: Sequence[Any]) -> list[Guess | None]:
        """What is guessed for each schedule; None where TVM's extractor cannot read it."""
        features = features_of(task, schedules)
        known = [i for i, found in enumerate(features) if found is not None]
        guesses: list[Guess | None] = [None] * len(schedules)
        if known:
            rows = np.stack([row_of(found, task.flops, self.column) for found in features if found is not None])
            seconds = np.exp(self.call.predict(rows)) * scale_of(task.flops)
            builds = np.exp(self.build.predict(rows))
            for i, call, build in zip(known, seconds.tolist(), builds.tolist(), strict=True):
                guesses[i] = Guess(call, build)
        return guesses


def scale_of(flops: _Number) -> _Number:
    """Seconds that a task of so many operations takes, roughly; trees learn what differs from it."""
    return 1e-9 * flops + 1e-7


def features_of(task: Task, schedules: Sequence[Any]) -> list[npt.NDArray[np.float64] | None]:
    """TVM's features of each of a task's schedules, of what is timed alone: without the packing of constants, which
    TVM's extractor leaves out itself where it does not pad.  None where the extractor cannot read it."""
    try:
        return list(metaschedule.store_features(task.module, task.target, [_readable(s) for s in schedules]))
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        if len(schedules) == 1:
            return [None]
    return [features_of(task, [schedule])[0] for schedule in schedules]


def _readable(schedule: Any) -> Any:
    """The schedule; where it packs and pads in one, its kernel alone."""
    func = schedule.mod["main"]
    if all(type(block.body.value).__name__ == "TensorLoad" for block in packing_blocks(func)):
        return schedule
    try:
        return _tvm.Schedule(_tvm.IRModule({"main": cut(func)[0]}))
    except InvalidSchedule:
        return schedule


def row_of(features: npt.NDArray[np.float64], flops: float, column: int) -> Rows:
    """float32[columns]: of each of TVM's columns the sum over stores, per operation of the task (as a logarithm: sizes
    that no store has are no stranger so), the largest, and that of the store that computes most; how many stores there
    are, log2 of the task's operations, and which device it is."""
    counts = np.sign(features) * np.expm1(np.minimum(np.abs(features), _MOST) * np.log(2.0))
    sums = counts.sum(axis=0)
    # Rounded, so that of stores with equally much to do it is the first on every machine.
    busiest = int(np.argmax(np.round(np.log2(1.0 + counts[:, _ARITHMETIC].sum(axis=1)), 6)))
    row = np.concatenate(
        [
            np.sign(sums) * np.log2(1.0 + np.abs(sums)) - np.log2(1.0 + flops),
            features.max(axis=0),
            features[busiest],
            [len(features), np.log2(1.0 + flops), column],
        ]
    )
    found: Rows = np.nan_to_num(row).astype(np.float32)
    return found


@cache
def surrogate_of(device: Simulated) -> Surrogate:
    """The fitted surrogate of a simulated device."""
    with np.load(FOLDER / f"simulated-{device.kind}.npz", allow_pickle=False) as arrays:
        return Surrogate(
            column=DEVICES[device.kind].index(device.name),
            call=Trees.from_arrays(arrays, "call"),
            build=Trees.from_arrays(arrays, "build"),
            noise=np.asarray(arrays[f"{device.name}.noise"], dtype=np.float64),
            most_build=float(arrays[f"{device.name}.most_build"]),
            most_call=float(arrays[f"{device.name}.most_call"]),
        )
