"""Define the Record of a measured candidate, with everything needed to evaluate or repeat the measurement.

The input is a task, a sketch's key, a point and its Measurement. The output is a Record, which adds the device, the
target, the versions, the seed and the time.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING

from felixlike._util import option_checks
from felixlike._version import __version__
from felixlike.hardware import device_name
from felixlike.measure.measurement import Measurement

if TYPE_CHECKING:
    from felixlike.frontend.task import Task

UKERNELS = "uKernels"
"""Sketch of the records of kernels for dynamic sizes, which are generated, not scheduled. Points have tile sizes."""


@dataclass(frozen=True, slots=True)
class Record:
    """Measurement of one point of one sketch of one task.

    Attributes:
        task: The task's key (`Task.key`).
        sketch: The sketch's key (`Sketch.key`).
        point: Value of each variable of the sketch.
        measurement: The result.
        device: Name of the processor that measured it, this machine's or a server's.
        target: TVM's text of the target.
        tvm: Version of TVM; empty for imported records.
        felixlike: Version of felixlike; empty if another tuner measured it.
        seed: Seed of the run.
        time: Time of recording, seconds since 1970; 0 for imported records.
    """

    task: str
    sketch: str
    point: tuple[int, ...]
    measurement: Measurement
    device: str
    target: str
    tvm: str
    felixlike: str
    seed: int
    time: float


def make_record(task: "Task", sketch: str, point: Iterable[int], measurement: Measurement, *, seed: int = 0) -> Record:
    """Make the record of a measurement, with the current time and the installed versions.

    Args:
        task: The task that was measured.
        sketch: The sketch's key.
        point: Value of each variable of the sketch; Python or numpy integers.
        measurement: The result. If it names no device, the record has that of the task's target.
        seed: Seed of the run.

    Raises:
        InvalidOption: `task` is not a Task or `measurement` is not a Measurement.
    """
    from felixlike.frontend.task import Task

    option_checks.of_kind(
        task, Task, "task", where="make_record", remedy="pass a task from extract_tasks(model, shapes)"
    )
    option_checks.of_kind(
        measurement, Measurement, "measurement", where="make_record", remedy="pass a Measurement from felixlike.measure"
    )

    return Record(
        task=task.key,
        sketch=sketch,
        point=tuple(int(value) for value in point),
        measurement=replace(measurement, device=""),
        device=measurement.device or device_name(task.target),
        target=str(task.target),
        tvm=metadata.version("apache-tvm"),
        felixlike=__version__,
        seed=seed,
        time=time.time(),
    )
