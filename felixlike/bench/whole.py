"""One network, tuned and compared: a row of the table.

In: its name, the batch, seconds to tune it in. Out: seconds of a call of each side, timed in turns, each in a process
of its own with as many threads, and how right and how soon ours was. A row holds numbers and text alone.
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
from felixlike.bench.processes import Sides
from felixlike.bench.sides import CHANNELS_LAST, COMPILED, EAGER, ONNX, baselines, saved
from felixlike.errors import FelixlikeWarning

OTHERS = (EAGER, CHANNELS_LAST, COMPILED, ONNX)
"""What a network is compared with unless somebody asks for something else."""

TUNED = "tuned"


def measure(
    name: str, batch: int, seconds: float, *, against: Sequence[str] = OTHERS, progress: bool | str = True
) -> dict[str, Any]:
    """Tune a network, save it, and time it against others.

    against: names of sides.  Raises as `felixlike.optimize` does; sides that do not work are named under "without"."""
    import felixlike as fx
    from felixlike.hardware import placement

    make = partial((NETWORKS | SMALL)[name], batch=batch)
    model, inputs = make()
    against = [side for side in against if side != CHANNELS_LAST or any(x.dim() in (4, 5) for x in inputs)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", FelixlikeWarning)
        tuned = fx.optimize(model, inputs, seconds=seconds, progress=progress)
    report = tuned.report
    with scratch.temporary("networks") as folder:
        path = folder / f"{name}.flx"
        tuned.save(path)
        del model, inputs, tuned
        gc.collect()  # some networks fill a good part of the memory, and every side has one of its own
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
    row |= {side: found.seconds for side, found in times.items()}
    row["mean"] = {side: found.mean for side, found in times.items()}
    row["quartiles"] = {side: [found.low, found.high] for side, found in times.items()}
    row["without"] = without
    row["warnings"] = [str(warning.message) for warning in said if issubclass(warning.category, FelixlikeWarning)]
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
