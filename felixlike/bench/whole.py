"""Tune one network and compare it with other sides: a row of the table.

Inputs: the network's name, the batch size, seconds of tuning. Output: a row of numbers and text: seconds per call of
each side, timed alternately in separate processes with equal numbers of threads; errors, and the time of tuning.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from felixlike._util import scratch
from felixlike.bench.networks import NETWORKS, SMALL
from felixlike.bench.sides import CHANNELS_LAST, COMPILED, EAGER, ONNX, baselines, saved
from felixlike.errors import FelixlikeWarning
from felixlike.measure.sides.processes import Sides

OTHERS = (EAGER, CHANNELS_LAST, COMPILED, ONNX)
"""Sides that networks are compared with by default."""

TUNED = "tuned"
"""Name of the tuned side."""


def measure(
    name: str, batch: int, seconds: float, *, against: Sequence[str] = OTHERS, progress: bool | str = True
) -> dict[str, Any]:
    """Tune a network, save it, and time it against other sides.

    Args:
        name: Name of a network in NETWORKS or SMALL.
        batch: Batch size.
        seconds: Seconds of tuning.
        against: Names of the other sides.
        progress: As in `felixlike.optimize`.

    Returns:
        The row. Sides that failed are named under "without".

    Raises:
        RuntimeError: The tuned model cannot be called. Errors of `felixlike.optimize` are raised as well.
    """
    import felixlike as fx
    from felixlike.hardware import placement

    make = partial((NETWORKS | SMALL)[name], batch=batch)
    model, inputs = make()
    against = [side for side in against if side != CHANNELS_LAST or any(x.dim() in (4, 5) for x in inputs)]
    with warnings.catch_warnings(record=True) as recorded_warnings:
        warnings.simplefilter("always", FelixlikeWarning)
        tuned = fx.optimize(model, inputs, seconds=seconds, progress=progress)
    report = tuned.report
    with scratch.temporary("networks") as folder:
        path = folder / f"{name}.flx"
        tuned.save(path)
        del model, inputs, tuned
        gc.collect()  # every side loads the network, and some networks fill much of the memory
        with Sides() as sides:
            times = sides.compare({**baselines(make, against), TUNED: partial(saved, path, make)})
            without = dict(sides.failures)
    if TUNED not in times:
        raise RuntimeError(f"{name}: the tuned model cannot be called: {without[TUNED]}")
    kernels = sum(task.seconds * task.weight for task in report.tasks)  # nan where one was not measured
    row: dict[str, Any] = {"network": name, "batch": batch, "limit": seconds, "threads": placement.threads()}
    row |= {
        "error": report.error,
        "reference": report.reference,
        "trials": report.trials,
        "kernels": kernels if math.isfinite(kernels) else None,
    }
    row |= {"tuning_seconds": report.seconds, "total_seconds": report.total_seconds, "spent": report.spent}
    row |= {side: timed.seconds for side, timed in times.items()}
    row["mean"] = {side: timed.mean for side, timed in times.items()}
    row["quartiles"] = {side: [timed.low, timed.high] for side, timed in times.items()}
    row["without"] = without
    row["warnings"] = [
        str(warning.message) for warning in recorded_warnings if issubclass(warning.category, FelixlikeWarning)
    ]
    row["tasks"] = [
        {
            "name": task.name,
            "calls": task.weight,
            "flops": task.flops,
            "seconds": task.seconds if math.isfinite(task.seconds) else None,
            "how": task.how,
        }
        for task in report.tasks
    ]
    return row
