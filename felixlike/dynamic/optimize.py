"""Implement `optimize` for models with dynamic sizes: plan, compile, verify at several sizes, report.

Input: a model, shapes with dimensions. Output: the compiled model and its report, or VerificationFailed. If the batch
is the only dynamic size of a model with convolutions, the model is optimized for a few fixed batch sizes instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from felixlike import runtime
from felixlike.dynamic.batch import Batch, batch_of, in_parts
from felixlike.dynamic.memory import check_memory
from felixlike.dynamic.network import Network, Part, compile_source
from felixlike.dynamic.shapes import has_dims, is_dynamic_program
from felixlike.dynamic.sources import read_network
from felixlike.errors import FelixlikeWarning, first_line
from felixlike.frontend.imported import warnings_of
from felixlike.frontend.importers.input_shapes import either
from felixlike.hardware import device_name, kind_of
from felixlike.report import Report
from felixlike.report.report_data import TaskReport
from felixlike.runtime.verification import Verdict, Verification, max_relative_error
from felixlike.tuning.finish import hand_over, versions


def is_dynamic(model: Any, shapes: Any, example_inputs: Any) -> bool:
    """Return whether a model has dynamic sizes."""
    return has_dims(shapes) or has_dims(example_inputs) or is_dynamic_program(model)


_UNCOMPARED = Verification(float("nan"), "")
"""A verification that has not run yet."""


Fixed = Callable[[Any, Any, Mapping[str, Any]], tuple[runtime.Compiled, Report]]
"""Optimizes a model for fixed sizes, given example inputs and limits."""


def optimize_dynamic(
    model: Any,
    shapes: Any,
    example_inputs: Any,
    target: Any,
    fixed: Fixed,
    limits: Mapping[str, Any],
    *,
    seed: int,
) -> tuple[runtime.Compiled, Report, Verification, list[FelixlikeWarning]]:
    """Compile a model with dynamic sizes.

    Args:
        model: As for `optimize`.
        shapes: As for `optimize`; some sizes are `Dim`s.
        example_inputs: Another name for `shapes`.
        target: The TVM target.
        fixed: Optimizes a model for fixed sizes; used for parts of a batch.
        limits: "rounds", "trials" and "seconds" of the whole run. If rounds or trials is 0, nothing is timed.
        seed: Recorded in the report.

    Returns:
        The compiled model, its report, the verification, and warnings that `fixed` has not issued.

    Raises:
        FelixlikeError: As for `compile_network`, and whatever `fixed` raises.
    """
    started = time.monotonic()
    measure = 0 not in (limits["rounds"], limits["trials"])
    source, dims = read_network(model, either(shapes, example_inputs))
    check_memory(source, dims)
    if (batch := batch_of(model, source, dims)) is not None:
        parts = {
            size: fixed(*batch.fixed(size), run_limits)
            for size, run_limits in zip(batch.sizes, shared(limits, len(batch.sizes)), strict=True)
        }
        compiled = in_parts(batch, {size: part for size, (part, _) in parts.items()}, measure=measure)
        reports = {size: report for size, (_, report) in parts.items()}
        hand_over(compiled, _merged(batch, reports, compiled, _UNCOMPARED, started))
        sizes = dict.fromkeys((batch.dim.least, (batch.dim.least + batch.dim.most) // 2, batch.dim.most))
        verification = _compared(compiled, source.original, map(batch.examples, sizes))
        return compiled, _merged(batch, reports, compiled, verification, started), verification, []
    network = compile_source(source, dims, target, measure=measure)
    hand_over(network.compiled, _report(network, _UNCOMPARED, started=started, seed=seed))
    verification = _compared(network.compiled, source.original, network.examples())
    report = _report(network, verification, started=started, seed=seed)
    return network.compiled, report, verification, warnings_of(source)


def shared(limits: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Divide limits among `count` runs; the remainder of whole numbers goes to the last runs."""
    limits_of_runs: list[dict[str, Any]] = []
    for place in range(count):
        run_limits: dict[str, Any] = {}
        for name, limit in limits.items():
            if isinstance(limit, int):
                quotient, remainder = divmod(limit, count)
                run_limits[name] = quotient + (place >= count - remainder)
            else:
                run_limits[name] = None if limit is None else limit / count
        limits_of_runs.append(run_limits)
    return limits_of_runs


def _compared(compiled: runtime.Compiled, model: Any, examples: Iterable[tuple[Any, ...]]) -> Verification:
    """Return the worst of the comparisons at several sizes."""
    worst = Verification(float("nan"), "")
    for inputs in examples:
        try:
            verification = max_relative_error(compiled, model, inputs)
        except Exception as error:  # the user's model may raise anything at these sizes
            return Verification(float("nan"), "", Verdict.UNSURE, f"comparing failed: {first_line(error)}")
        if verification.verdict is Verdict.WRONG:
            return verification
        if not worst.reference or verification.error > worst.error:
            worst = verification
    return worst


def _merged(
    batch: Batch, reports: Mapping[int, Report], compiled: runtime.Chunked, verification: Verification, started: float
) -> Report:
    """Merge the reports of all parts into one."""
    first = next(iter(reports.values()))
    name, most = batch.dim.name, batch.dim.most
    tasks = tuple(
        replace(task, name=f"{task.name}, {name}={size}") for size, report in reports.items() for task in report.tasks
    )
    notes = [note for note in (batch.source.note, *(report.note for report in reports.values())) if note]
    if verification.verdict is not Verdict.RIGHT:
        notes.append(f"The whole model was not verified: {verification.words}.")
    spent: dict[str, float] = {}
    for report in reports.values():
        for step, seconds in report.spent.items():
            spent[step] = spent.get(step, 0.0) + seconds
    parts = f"parts of {', '.join(map(str, reports))} for {batch.dim}: {most} = {_sum(compiled.steps(most))}"
    return replace(
        first,
        model=batch.source.name,
        tasks=tasks,
        trials=sum(report.trials for report in reports.values()),
        rounds=sum(report.rounds for report in reports.values()),
        seconds=sum(report.seconds for report in reports.values()),
        total_seconds=time.monotonic() - started,
        error=verification.error,
        reference=verification.reference,
        stopped=f"{first.stopped}; {parts}",
        recalled=sum(report.recalled for report in reports.values()),
        note=" ".join(dict.fromkeys(notes)),
        spent=spent,
    )


def _sum(steps: list[int]) -> str:
    """Return part sizes as a sum, such as "3 × 4 + 1 × 1"."""
    return " + ".join(f"{steps.count(size)} × {size}" for size in dict.fromkeys(steps))


def _report(network: Network, verification: Verification, *, started: float, seed: int) -> Report:
    """Return the report of a compiled network."""
    plain = "TVM's default schedule" if kind_of(network.compiled.target).binds_threads else "row by row"
    tasks = tuple(_task(part, plain) for part in network.parts)
    notes = [network.source.note] if network.source.note else []
    if verification.verdict is not Verdict.RIGHT:
        notes.append(f"The whole model was not verified: {verification.words}.")
    return Report(
        model=network.source.name,
        tasks=tasks,
        trials=sum(task.trials for task in tasks),
        rounds=0,
        seconds=network.seconds,
        total_seconds=time.monotonic() - started,
        error=verification.error,
        reference=verification.reference,
        stopped=f"one module for {', '.join(map(str, network.dims))}",
        device=device_name(network.compiled.target),
        target=str(network.compiled.target),
        versions=versions(),
        seed=seed,
        note=" ".join(notes),
    )


def _task(part: Part, words: str) -> TaskReport:
    """Return the report of one function. words: the description of functions without uKernels."""
    plan = part.plan
    timed = plan is not None and plan.report.measured > 0
    if plan is not None:
        stages = "; ".join(map(str, plan.report.stages))
        words = f"{len(plan.tiles)} uKernels in code, {plan.report.programs} programs ranked ({stages})"
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
