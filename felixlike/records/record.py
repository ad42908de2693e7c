"""One measured candidate, with everything needed to judge it or to repeat it.

In: a task, a sketch's key, a point and its Measurement. Out: a Record, which adds where, when and by what it was made.
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


@dataclass(frozen=True, slots=True)
class Record:
    """A measurement of one point of one sketch of one task.

    task: Task.key.  sketch: the sketch's key.  point: the value of each of its variables.  device: the processor, or
    a server's.  target: TVM's text of it.  tvm, felixlike: versions.  seed: of the run.  time: seconds since 1970, when
    recorded."""

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
    """A record of something measured just now, on the target's device or the one the measurement names, by
    these versions.

    point: integers, numpy's too.  Raises InvalidOption for what is no task or no measurement."""
    from felixlike.frontend.task import Task

    option_checks.of_kind(task, Task, "task", where="make_record", remedy="give one of extract_tasks(model, shapes)")
    option_checks.of_kind(
        measurement, Measurement, "measurement", where="make_record", remedy="give what measure returns"
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
