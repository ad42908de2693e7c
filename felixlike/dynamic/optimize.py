"""`optimize` of a model some of whose sizes a call decides: planned, compiled, compared at several sizes, reported.

In: a model, shapes with dimensions. Out: the compiled model and its report, or VerificationFailed.
"""

from __future__ import annotations

import time
from typing import Any

from felixlike import deploy
from felixlike.deploy.verify import Verdict, Verification, max_relative_error
from felixlike.dynamic.network import Network, Part, compile_network
from felixlike.dynamic.shapes import has_dims, is_dynamic_program
from felixlike.errors import first_line
from felixlike.finish import versions
from felixlike.frontend.shapes import either
from felixlike.hardware import device_name
from felixlike.report import Report
from felixlike.report.report import TaskReport


def is_dynamic(model: Any, shapes: Any, example_inputs: Any) -> bool:
    """Whether a call decides some of a model's sizes."""
    return has_dims(shapes) or has_dims(example_inputs) or is_dynamic_program(model)


def optimize_dynamic(
    model: Any, shapes: Any, example_inputs: Any, target: Any, *, measure: bool, seed: int
) -> tuple[deploy.Compiled, Report, Verification]:
    """The compiled model, what was done, and what came of comparing it.  measure: whether uKernels are timed.
    Raises as `compile_network` does."""
    started = time.monotonic()
    network = compile_network(model, either(shapes, example_inputs), target, measure=measure)
    found = _compared(network, model)
    return network.compiled, _report(network, found, started=started, seed=seed), found


def _compared(network: Network, model: Any) -> Verification:
    """The worst of the comparisons at several sizes."""
    worst = Verification(float("nan"), "")
    for inputs in network.examples():
        try:
            found = max_relative_error(network.compiled, model, inputs)
        except Exception as error:  # whatever the user's model does at such sizes
            return Verification(float("nan"), "", Verdict.UNSURE, f"comparing failed: {first_line(error)}")
        if found.verdict is Verdict.WRONG:
            return found
        if not worst.reference or found.error > worst.error:
            worst = found
    return worst


def _report(network: Network, found: Verification, *, started: float, seed: int) -> Report:
    tasks = tuple(_task(part) for part in network.parts)
    note = "" if found.verdict is Verdict.RIGHT else f"The whole model was not verified: {found.words}."
    return Report(
        model=network.source.name,
        tasks=tasks,
        trials=sum(task.trials for task in tasks),
        rounds=0,
        seconds=network.seconds,
        total_seconds=time.monotonic() - started,
        error=found.error,
        reference=found.reference,
        stopped=f"one module for {', '.join(map(str, network.dims))}",
        device=device_name(network.compiled.target),
        target=str(network.compiled.target),
        versions=versions(),
        seed=seed,
        note=note,
    )


def _task(part: Part) -> TaskReport:
    plan = part.plan
    timed = plan is not None and plan.report.measured > 0
    words = "row by row"
    if plan is not None:
        kept = "; ".join(map(str, plan.report.stages))
        words = f"{len(plan.pool.tiles)} uKernels in code, {plan.report.programs} programs ranked ({kept})"
    return TaskReport(
        name=part.name,
        workload=part.key,
        weight=float(part.calls),
        flops=part.flops,
        how="measured" if timed else "untuned" if plan is None else "unmeasured",
        sketch=None,
        sketches=0,
        seconds=float("nan"),
        trials=0 if plan is None else plan.report.measured,
        failures={},
        error=None,
        point={},
        sampled={},
        note=words,
    )
