"""`optimize` of a model some of whose sizes a call decides: planned, compiled, compared at several sizes, reported.

In: a model, shapes with dimensions. Out: the compiled model and its report, or VerificationFailed. Where the batch is
the only such size of a model with convolutions, it is optimized for a few fixed sizes instead.
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
    """Whether a call decides some of a model's sizes."""
    return has_dims(shapes) or has_dims(example_inputs) or is_dynamic_program(model)


_UNCOMPARED = Verification(float("nan"), "")


Fixed = Callable[[Any, Any, Mapping[str, Any]], tuple[runtime.Compiled, Report]]
"""Optimizes a model for fixed sizes, given examples and limits."""


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
    """The compiled model, what was done, what came of comparing it, and what `fixed` has not warned of.

    fixed: used where the batch is cut into parts of fixed sizes.  limits: rounds, trials and seconds of the whole run;
    where one is 0, nothing is timed.  Raises as `compile_network` does, and what `fixed` raises."""
    started = time.monotonic()
    measure = 0 not in (limits["rounds"], limits["trials"])
    source, dims = read_network(model, either(shapes, example_inputs))
    check_memory(source, dims)
    if (batch := batch_of(model, source, dims)) is not None:
        parts = {
            size: fixed(*batch.fixed(size), own)
            for size, own in zip(batch.sizes, shared(limits, len(batch.sizes)), strict=True)
        }
        compiled = in_parts(batch, {size: own for size, (own, _) in parts.items()}, measure=measure)
        reports = {size: report for size, (_, report) in parts.items()}
        hand_over(compiled, _merged(batch, reports, compiled, _UNCOMPARED, started))
        sizes = dict.fromkeys((batch.dim.least, (batch.dim.least + batch.dim.most) // 2, batch.dim.most))
        found = _compared(compiled, source.original, map(batch.examples, sizes))
        return compiled, _merged(batch, reports, compiled, found, started), found, []
    network = compile_source(source, dims, target, measure=measure)
    hand_over(network.compiled, _report(network, _UNCOMPARED, started=started, seed=seed))
    found = _compared(network.compiled, source.original, network.examples())
    report = _report(network, found, started=started, seed=seed)
    return network.compiled, report, found, warnings_of(source)


def shared(limits: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The limits of each of so many runs; of whole numbers the last get what is left over."""
    found: list[dict[str, Any]] = []
    for place in range(count):
        own: dict[str, Any] = {}
        for name, limit in limits.items():
            if isinstance(limit, int):
                each, more = divmod(limit, count)
                own[name] = each + (place >= count - more)
            else:
                own[name] = None if limit is None else limit / count
        found.append(own)
    return found


def _compared(compiled: runtime.Compiled, model: Any, examples: Iterable[tuple[Any, ...]]) -> Verification:
    """The worst of the comparisons at several sizes."""
    worst = Verification(float("nan"), "")
    for inputs in examples:
        try:
            found = max_relative_error(compiled, model, inputs)
        except Exception as error:  # whatever the user's model does at such sizes
            return Verification(float("nan"), "", Verdict.UNSURE, f"comparing failed: {first_line(error)}")
        if found.verdict is Verdict.WRONG:
            return found
        if not worst.reference or found.error > worst.error:
            worst = found
    return worst


def _merged(
    batch: Batch, reports: Mapping[int, Report], compiled: runtime.Chunked, found: Verification, started: float
) -> Report:
    """One report of the runs for all parts."""
    first = next(iter(reports.values()))
    name, most = batch.dim.name, batch.dim.most
    tasks = tuple(
        replace(task, name=f"{task.name}, {name}={size}") for size, own in reports.items() for task in own.tasks
    )
    notes = [note for note in (batch.source.note, *(own.note for own in reports.values())) if note]
    if found.verdict is not Verdict.RIGHT:
        notes.append(f"The whole model was not verified: {found.words}.")
    spent: dict[str, float] = {}
    for own in reports.values():
        for step, seconds in own.spent.items():
            spent[step] = spent.get(step, 0.0) + seconds
    parts = f"parts of {', '.join(map(str, reports))} for {batch.dim}: {most} = {_sum(compiled.steps(most))}"
    return replace(
        first,
        model=batch.source.name,
        tasks=tasks,
        trials=sum(own.trials for own in reports.values()),
        rounds=sum(own.rounds for own in reports.values()),
        seconds=sum(own.seconds for own in reports.values()),
        total_seconds=time.monotonic() - started,
        error=found.error,
        reference=found.reference,
        stopped=f"{first.stopped}; {parts}",
        recalled=sum(own.recalled for own in reports.values()),
        note=" ".join(dict.fromkeys(notes)),
        spent=spent,
    )


def _sum(steps: list[int]) -> str:
    return " + ".join(f"{steps.count(size)} × {size}" for size in dict.fromkeys(steps))


def _report(network: Network, found: Verification, *, started: float, seed: int) -> Report:
    plain = "TVM's default schedule" if kind_of(network.compiled.target).binds_threads else "row by row"
    tasks = tuple(_task(part, plain) for part in network.parts)
    notes = [network.source.note] if network.source.note else []
    if found.verdict is not Verdict.RIGHT:
        notes.append(f"The whole model was not verified: {found.words}.")
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
        note=" ".join(notes),
    )


def _task(part: Part, words: str) -> TaskReport:
    """words: of what has no uKernels."""
    plan = part.plan
    timed = plan is not None and plan.report.measured > 0
    if plan is not None:
        kept = "; ".join(map(str, plan.report.stages))
        words = f"{len(plan.tiles)} uKernels in code, {plan.report.programs} programs ranked ({kept})"
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
