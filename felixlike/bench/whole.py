"""Tune one model and compare it with other sides: a row of the table.

Inputs: a network's name and a batch size, or a user's model; seconds of tuning. Output: a row of numbers and text:
seconds per call of each side, timed alternately in separate processes with equal numbers of threads; the precision,
the error and the seconds to the first answer of each; and the time of tuning.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from felixlike._util import scratch
from felixlike.bench.answers import Reference, unpacked
from felixlike.bench.networks import NETWORKS, SMALL
from felixlike.bench.sides import CHANNELS_LAST, TUNED, Facts, baselines, in_precision, saved, sides_of
from felixlike.errors import FelixlikeWarning
from felixlike.measure.sides.processes import Make, SideFailed, Sides

if TYPE_CHECKING:
    from felixlike.bench.networks import Model


def measure(
    name: str,
    batch: int,
    seconds: float,
    *,
    against: Sequence[str] | None = None,
    progress: bool | str = True,
    precision: str = "float32",
) -> dict[str, Any]:
    """Tune a network, and time it against other sides.

    Args:
        name: Name of a network in NETWORKS or SMALL.
        batch: Batch size.
        seconds: Seconds of tuning.
        against: Names of the other sides; None for `sides.sides_of` the precision.
        progress: As in `felixlike.optimize`.
        precision: Precision of products, "float32" or "bfloat16".

    Returns:
        The row; see `compared`.
    """
    make = partial((NETWORKS | SMALL)[name], batch=batch)
    options: dict[str, Any] = {"against": against, "progress": progress, "precision": precision}
    return {"network": name, "batch": batch} | compared(make, name, seconds, **options)


def compared(
    make: Callable[[], Model],
    name: str,
    seconds: float,
    *,
    against: Sequence[str] | None = None,
    progress: bool | str = True,
    precision: str = "float32",
) -> dict[str, Any]:
    """Tune a model, save it, and time it against other sides.

    Args:
        make: Function that creates the module and its inputs, always the same. It can be pickled.
        name: The model's name, for messages.
        seconds: Seconds of tuning.
        against: Names of the other sides; None for `sides.sides_of` the precision.
        progress: As in `felixlike.optimize`.
        precision: Precision of products, "float32" or "bfloat16". Answers are compared with the module in float64
            either way.

    Returns:
        The row without the network's name. Sides that failed are named under "without", and those with wrong answers
        under "wrong".

    Raises:
        SideFailed: The tuned model cannot be called. Errors of `felixlike.optimize` are raised as well.
    """
    import felixlike as fx
    from felixlike.hardware import placement

    model, inputs = make()
    against = tuple(dict.fromkeys(in_precision(side, precision) for side in against or sides_of(precision)))
    against = [side for side in against if side != CHANNELS_LAST or any(x.dim() in (4, 5) for x in inputs)]
    with warnings.catch_warnings(record=True) as recorded_warnings:
        warnings.simplefilter("always", FelixlikeWarning)
        tuned = fx.optimize(model, inputs, seconds=seconds, progress=progress, precision=precision)
    report = tuned.report
    with scratch.temporary("networks") as folder:
        path = folder / "model.flx"
        tuned.save(path)
        del model, inputs, tuned
        gc.collect()  # every side loads the network, and some networks fill much of the memory
        makes: dict[str, Make] = {**baselines(make, against, precision), TUNED: partial(saved, path, make)}
        with Sides(folder) as sides:
            cold, without = _started(makes, sides)
            times = sides.compare({side: makes[side] for side in cold})
            facts: dict[str, Facts] = sides.facts
            without |= sides.failures
    if TUNED not in times:
        raise SideFailed(f"{name}: the tuned model cannot be called: {without[TUNED]}")
    kernels = sum(task.seconds * task.weight for task in report.tasks)  # nan where one was not measured
    row: dict[str, Any] = {"limit": seconds, "products": precision, "threads": placement.threads()}
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
    row["startup"] = {side: [cold[side].seconds, facts[side].seconds] for side in times}
    for field in ("version", "settings", "precision"):
        row[field] = {side: getattr(facts[side], field) for side in times}
    reference = Reference(*make(), wide=report.reference == "float64")
    judged = {side: reference.judge(unpacked(facts[side].answer), facts[side].precision) for side in times}
    row["errors"] = {side: result.error for side, result in judged.items()}
    row["wrong"] = {side: result.wrong for side, result in judged.items() if result.wrong}
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


def _started(makes: Mapping[str, Make], sides: Sides) -> tuple[dict[str, Facts], dict[str, str]]:
    """Load each side in a new process with empty caches. Return the sides' facts, and why others failed."""
    facts: dict[str, Facts] = {}
    failures = {}
    for name, make in makes.items():
        try:
            facts[name] = sides.start(name, make)
        except SideFailed as failure:
            failures[name] = str(failure)
    return facts, failures
