"""Predict the seconds of a call and of a build on a simulated device with boosted trees.

The input is a task and schedules, the output a `Guess` for each. The trees use TVM's own features of a scheduled
program and are fitted to record stores (`python -m benchmarks.simulated --fit`). Features and model differ from those
of the search, so a search is not evaluated by its own cost model.
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
"""Folder of the fitted trees, a file for each kind of target."""

DEVICES = {"llvm": ("zen5", "emerald-rapids"), "cuda": ("h100",)}
"""Simulated devices that share their trees, by the kind of their target. The device is an input column of the trees."""

_Number = TypeVar("_Number", float, npt.NDArray[np.float64])

_ARITHMETIC = slice(0, 7)
"""TVM's columns of floating-point operations, which determine the store that does most of the work."""
_MOST = 80.0
"""Upper limit on the log2 of a feature's count; chosen by hand."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Prediction without noise.

    Attributes:
        seconds: Seconds per call.
        build_seconds: Seconds of the build.
    """

    seconds: float
    build_seconds: float


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Surrogate of one simulated device.

    Attributes:
        column: Index of the device among those that share the trees.
        call: Trees that predict log(seconds ÷ `scale_of`).
        build: Trees that predict log(build seconds).
        noise: float64[n], quantiles of log(measured ÷ true seconds).
        most_build: Predicted seconds from which a build counts as timed out; inf if no measured build did.
        most_call: Predicted seconds from which a call counts as timed out; inf if no measured call did.
    """

    column: int
    call: Trees
    build: Trees
    noise: npt.NDArray[np.float64]
    most_build: float
    most_call: float

    def guesses(self, task: Task, schedules: Sequence[Any]) -> list[Guess | None]:
        """Return the prediction for each schedule; None if TVM's extractor cannot read it."""
        features = features_of(task, schedules)
        known = [i for i, row in enumerate(features) if row is not None]
        guesses: list[Guess | None] = [None] * len(schedules)
        if known:
            rows = np.stack([row_of(row, task.flops, self.column) for row in features if row is not None])
            seconds = np.exp(self.call.predict(rows)) * scale_of(task.flops)
            builds = np.exp(self.build.predict(rows))
            for i, call, build in zip(known, seconds.tolist(), builds.tolist(), strict=True):
                guesses[i] = Guess(call, build)
        return guesses


def scale_of(flops: _Number) -> _Number:
    """Return a rough time of a task with this number of operations, s; the trees predict the ratio to it."""
    return 1e-9 * flops + 1e-7


def features_of(task: Task, schedules: Sequence[Any]) -> list[npt.NDArray[np.float64] | None]:
    """Return TVM's features of each of a task's schedules; None if the extractor cannot read a schedule.

    The features cover only what is timed: the packing of constants is left out. TVM's extractor does so itself unless
    the packing also pads."""
    try:
        return list(metaschedule.store_features(task.module, task.target, [_readable(s) for s in schedules]))
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        if len(schedules) == 1:
            return [None]
    return [features_of(task, [schedule])[0] for schedule in schedules]


def _readable(schedule: Any) -> Any:
    """Return the schedule, or only its kernel if a packing also pads."""
    func = schedule.mod["main"]
    if all(type(block.body.value).__name__ == "TensorLoad" for block in packing_blocks(func)):
        return schedule
    try:
        return _tvm.Schedule(_tvm.IRModule({"main": cut(func)[0]}))
    except InvalidSchedule:
        return schedule


def row_of(features: npt.NDArray[np.float64], flops: float, column: int) -> Rows:
    """Return the trees' input, float32[columns].

    For each of TVM's columns, the row has the logarithm of its sum over stores per operation of the task (so that
    unseen sizes stay in range), its maximum, and its value at the store with most arithmetic. The number of stores,
    log2 of the task's operations and the device's index follow.

    Args:
        features: float64[stores, columns], TVM's features.
        flops: Floating-point operations of the task.
        column: Index of the device.
    """
    counts = np.sign(features) * np.expm1(np.minimum(np.abs(features), _MOST) * np.log(2.0))
    sums = counts.sum(axis=0)
    # Rounding makes the first of several equal stores the busiest one on every machine.
    busiest = int(np.argmax(np.round(np.log2(1.0 + counts[:, _ARITHMETIC].sum(axis=1)), 6)))
    row = np.concatenate(
        [
            np.sign(sums) * np.log2(1.0 + np.abs(sums)) - np.log2(1.0 + flops),
            features.max(axis=0),
            features[busiest],
            [len(features), np.log2(1.0 + flops), column],
        ]
    )
    finite_row: Rows = np.nan_to_num(row).astype(np.float32)
    return finite_row


@cache
def surrogate_of(device: Simulated) -> Surrogate:
    """Load the fitted surrogate of a simulated device."""
    with np.load(FOLDER / f"simulated-{device.kind}.npz", allow_pickle=False) as arrays:
        return Surrogate(
            column=DEVICES[device.kind].index(device.name),
            call=Trees.from_arrays(arrays, "call"),
            build=Trees.from_arrays(arrays, "build"),
            noise=np.asarray(arrays[f"{device.name}.noise"], dtype=np.float64),
            most_build=float(arrays[f"{device.name}.most_build"]),
            most_call=float(arrays[f"{device.name}.most_call"]),
        )
