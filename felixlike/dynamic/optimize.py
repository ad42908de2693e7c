"""Implement `optimize` for models with dynamic sizes: plan, compile, verify at several sizes, report.

Input: a model, shapes with dimensions. Output: the compiled model and its report, or VerificationFailed. If the batch
is the only dynamic size of a model with convolutions, the model is optimized for a few fixed batch sizes instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from felixlike import costmodel, records, runtime
from felixlike._util.deadline import Deadline
from felixlike._util.interrupts import joined
from felixlike._util.spent import Spent, on
from felixlike._util.wording import counted
from felixlike.dynamic.batch import Batch, batch_of, in_parts
from felixlike.dynamic.bench import Timings
from felixlike.dynamic.branches import OTHER_OPERATORS, REMEDY, takes_another_branch
from felixlike.dynamic.inputs import with_bounds
from felixlike.dynamic.joint import Instances, with_instances
from felixlike.dynamic.memory import check_least, check_memory
from felixlike.dynamic.network import Network, Part, Planned, plan_source
from felixlike.dynamic.planner import Planner, Timed, check_target
from felixlike.dynamic.shapes import has_dims, is_dynamic_program
from felixlike.dynamic.sources import read_network
from felixlike.errors import FallbackWarning, FelixlikeWarning, InvalidOption, first_line
from felixlike.frontend.imported import Imported, Source, warnings_of
from felixlike.frontend.importers.input_shapes import either
from felixlike.hardware import (
    BFLOAT16,
    FLOAT32,
    device_name,
    kind_of,
    precision_of,
    require_float32,
    require_real,
    target_device,
    without_precision,
)
from felixlike.report import Report, RunLog, make_progress
from felixlike.report.report_data import TaskReport
from felixlike.runtime.verification import Verdict, Verification, max_relative_error
from felixlike.tuning.budget import TRIALS_PER_ROUND, Budget
from felixlike.tuning.config import RunConfig
from felixlike.tuning.reporting import call_fields, spent_fields, verification_fields, verification_note, versions
from felixlike.tuning.run import Result, Run, closing, start_event, timed, tune
from felixlike.tuning.verifying import UNVERIFIED, error_of_precisions, hand_over, product_error, verification_warnings


def is_dynamic(model: Any, shapes: Any, example_inputs: Any) -> bool:
    """Return whether a model has dynamic sizes."""
    return has_dims(shapes) or has_dims(example_inputs) or is_dynamic_program(model)


def optimize_dynamic(
    model: Any,
    shapes: Any,
    example_inputs: Any,
    config: RunConfig,
    dynamic_shapes: Any = None,
    instances: Instances | None = None,
    planner: Planner | None = None,
    spent: Spent | None = None,
) -> Result:
    """Compile a model with dynamic sizes.

    Args:
        model: As for `optimize`.
        shapes: As for `optimize`; some sizes may be `Dim`s.
        example_inputs: Another name for `shapes`.
        dynamic_shapes: As for `optimize`.
        instances: As for `optimize`.
        planner: How the programs of kernels are chosen; None for the default.
        config: The run's options. If rounds or trials is 0, or the effort is instant, nothing is timed. Timings of
            kernels are kept in the store like measurements of candidates, and count as trials.
        spent: The clock of the run, which may have run before; None for a new one.

    Returns:
        The compiled model, its report and what there is to tell about it.

    Raises:
        InvalidOption: A tracker is given, but kernels for dynamic sizes are measured on this machine. Or `compare`. Or
            instances or a planner for a batch, which have no effect.
        InvalidDim: An instance is out of its dimensions' ranges.
        FelixlikeError: As for `compile_network`, and as for `tune` if parts of a batch are tuned.
    """
    require_real(config.target, where="dynamic shapes")  # dynamic kernels are measured on this machine
    require_float32(config.target)
    if planner is not None:
        check_target(planner, config.target)
    if config.compare:
        raise InvalidOption(
            "models with dynamic sizes are not compared with eager PyTorch",
            where="compare",
            remedy="leave out `compare`, or optimize for fixed sizes",
        )
    clock = spent or Spent(config.started)
    with clock.running(), on("importing"):
        source, dims = with_bounds(*read_network(model, either(shapes, example_inputs), dynamic_shapes))
    if instances is not None:
        dims = with_instances(dims, instances)
    check_memory(source, dims)
    check_least(source, dims)
    if (batch := batch_of(model, source, dims)) is not None:
        for option, value in {"instances": instances, "planner": planner}.items():
            if value is not None:
                raise InvalidOption(
                    f"{batch.dim.name} is the batch of a model with convolutions, which is tuned for a few batch sizes",
                    where=option,
                    remedy=f"leave out `{option}`",
                )
        return _optimize_batch(batch, config)
    _refuse_tracker(config)
    problems, deadline = list[str](), Deadline()
    with (
        clock.running(),
        joined() as interrupts,
        closing(records.open(config.store), problems) as store,
        closing(make_progress(config.progress), problems) as progress,
        closing(RunLog(config.store), problems) as log,
    ):
        timings = Timings(store, _budget(config), seed=config.seed, say=progress.say, log=log)
        planned = plan_source(
            source, dims, config.target, measure=config.measures, planner=planner or Timed(), timings=timings
        )
        fixed = planned.imported()
        budget = replace(timings.budget).with_default(len(fixed.tasks), config.effort)
        log.write("start", **start_event(source.name, fixed.tasks, budget, config))
        if fixed.tasks:
            predictor = costmodel.load(
                kind_of(config.target).device, config.weights, seed=config.seed, device=target_device(config.target)
            )
            run = Run(config, budget, deadline, predictor, store, progress, log, interrupts, problems)
            with closing(config.pool_factory(deadline)(), problems) as pool:
                chosen = run.chosen(fixed.tasks, pool)
            build, reporter = run.built(fixed, chosen, partial(_compiled, planned, fixed))
            network, tasks, choices = planned.network(build.compiled), reporter.tasks, build.choices
        else:
            network, tasks, choices = planned.network(planned.compiled({})), _no_tasks, ()
        progress.say("comparing the model with the original")
        report = partial(_report, network, timings, budget, config, tasks)
        hand_over(network.compiled, lambda: report(UNVERIFIED))
        rounded = {_precision(part) for part in network.parts}
        products = max(error_of_precisions(config.target, rounded), product_error(config.target, choices))
        verification = _compared(network.compiled, source, network.examples(), products=products)
        times = timed(fixed, network.compiled, config, verification, interrupts, problems.append)
        latencies: dict[str, Any] = {**call_fields(times), **spent_fields(clock)}
        finished = replace(report(verification), **latencies)
        problems += log.end(finished)
    if (off := _excess(config, verification)) and products:
        exact = replace(config, target=without_precision(config.target))
        result = optimize_dynamic(model, shapes, example_inputs, exact, dynamic_shapes, instances, planner, clock)
        return _in_float32(result, finished, off)
    problems += [off] if off else []
    pending = [
        *warnings_of(source),
        *_chosen_ranges(source),
        *([] if fixed.tasks else _without_effect(network, config, planner or Timed())),
    ]
    pending += [FallbackWarning(f"{source.name}: {problem}.") for problem in problems]
    return Result(network.compiled, finished, verification, tuple(pending))


def _excess(config: RunConfig, verification: Verification) -> str:
    """Return that a model's error is larger than the run's tolerance, as words; empty if it is not."""
    if config.tolerance is None or not verification.error > config.tolerance:
        return ""
    return f"the model is off by {verification.error:.1e}, more than the tolerance of {config.tolerance:g}"


def _in_float32(result: Result, rounded: Report, why: str) -> Result:
    """Return a result in float32 that replaces one whose products were rounded. why: what was wrong with that."""
    note = f"All products are float32: with bfloat16, {why}."
    report = replace(
        result.report, precision=rounded.precision, note=" ".join(filter(None, (result.report.note, note)))
    )
    return replace(result, report=report)


def _compiled(planned: Planned, fixed: Imported, schedules: Mapping[str, Any]) -> runtime.Compiled:
    """Compile a model with schedules by the keys of its tasks."""
    return planned.compiled(
        {name: module["main"] for key, module in schedules.items() for name in fixed.functions[key]}
    )


def _no_tasks() -> tuple[TaskReport, ...]:
    """Return the reports of the tasks of a model without functions of fixed sizes."""
    return ()


def _refuse_tracker(config: RunConfig) -> None:
    """Raise InvalidOption for options of measuring elsewhere."""
    for option in ("tracker", "key"):
        if getattr(config, option) is not None:
            raise InvalidOption(
                "kernels for dynamic sizes are measured on this machine",
                where=option,
                remedy=f"leave out `{option}`, or optimize for fixed sizes",
            )


def _budget(config: RunConfig) -> Budget:
    """Return the limits of timings, which are not made in rounds: a round counts as its trials."""
    limits = [config.trials, None if config.rounds is None else config.rounds * TRIALS_PER_ROUND]
    return Budget(
        None, min((limit for limit in limits if limit is not None), default=None), config.seconds, config.started
    )


def _chosen_ranges(source: Source) -> list[FelixlikeWarning]:
    """Return a warning about sizes without an upper bound."""
    if not source.unbounded:
        return []
    return [FelixlikeWarning(f"{source.name}: {source.note} Give them an upper bound to compile for other sizes.")]


def _without_effect(network: Network, config: RunConfig, planner: Planner) -> list[FelixlikeWarning]:
    """Return a warning about options that the user changed, if no function has fixed sizes to use them."""
    options = {field.name: field.default for field in fields(RunConfig)}
    limits = () if planner.measures else ("rounds", "trials", "seconds")
    changed = [name for name in ("strategy", "space", "weights", *limits) if getattr(config, name) != options[name]]
    if not changed:
        return []
    dims = ", ".join(dict.fromkeys(dim.name for dim in network.dims.values()))
    means = "formulas and timings of their own" if planner.measures else "FTuner's score"
    return [
        FelixlikeWarning(
            f"{network.source.name}: {', '.join(changed)} has no effect, since kernels for dynamic sizes ({dims}) are"
            f" chosen by {means}."
        )
    ]


def _optimize_batch(batch: Batch, config: RunConfig) -> Result:
    """Tune a model for a few batch sizes, which share the limits, and serve all others with parts of these sizes.

    If the model of one size computes something else than the original, it is the result.
    """
    limits = {"rounds": config.rounds, "trials": config.trials, "seconds": config.seconds}
    parts: dict[int, Result] = {}
    for size, part_limits in zip(batch.sizes, shared(limits, len(batch.sizes)), strict=True):
        part_config = replace(config, started=time.monotonic(), **part_limits)
        parts[size] = part = tune(*batch.fixed(size), None, part_config)
        if part.verification.verdict is Verdict.WRONG:
            return part
    compiled = in_parts(batch, {size: part.compiled for size, part in parts.items()}, measure=config.measures)
    report = partial(_merged, batch, {size: part.report for size, part in parts.items()}, compiled, config.started)
    hand_over(compiled, lambda: report(UNVERIFIED))
    sizes = dict.fromkeys((batch.dim.least, (batch.dim.least + batch.dim.most) // 2, batch.dim.most))
    examples = (({batch.dim.name: size}, batch.examples(size)) for size in sizes)
    products = error_of_precisions(
        config.target, {task.precision for part in parts.values() for task in part.report.tasks}
    )
    verification = _compared(compiled, batch.source, examples, products=products)
    finished, off = report(verification), _excess(config, verification)
    if off and products:
        exact = replace(config, target=without_precision(config.target))
        return _in_float32(_optimize_batch(batch, exact), finished, off)
    own = (FallbackWarning(f"{batch.source.name}: {off}."),) if off else ()
    pending = {
        (type(warning), str(warning)): warning
        for part in parts.values()
        for warning in (*part.warnings, *verification_warnings(part.verification, part.report.model))
    }
    return Result(compiled, finished, verification, (*_chosen_ranges(batch.source), *pending.values(), *own))


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


def _compared(
    compiled: runtime.Compiled,
    source: Source,
    examples: Iterable[tuple[Mapping[str, int], tuple[Any, ...]]],
    *,
    products: float,
) -> Verification:
    """Return the worst of the comparisons at several sizes, with the changed classes of all.

    examples: Sizes by name, and inputs of these sizes.
    products: error allowed for rounded products."""
    worst: Verification | None = None
    changed = rows = 0
    for sizes, inputs in examples:
        at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        try:
            verification = max_relative_error(compiled, source.original, inputs, products=products)
        except Exception as error:  # the user's model may raise anything at these sizes
            verification = Verification(math.nan, "", Verdict.UNSURE, f"comparing failed: {first_line(error)}")
        if verification.words:
            verification = replace(verification, words=f"{verification.words} (at {at})")
        if verification.verdict is Verdict.WRONG:
            if not takes_another_branch(source, inputs):
                return verification
            return replace(verification, words=f"{verification.words}; {OTHER_OPERATORS}", remedy=REMEDY)
        changed, rows = changed + verification.changed, rows + verification.rows
        uncompared = not verification.reference  # which is worse than any error
        if worst is None or (uncompared, verification.error) > (not worst.reference, worst.error):
            worst = verification
    if worst is None:
        return Verification(math.nan, "", Verdict.UNSURE, "no sizes are known for which it was exported")
    return replace(worst, changed=changed, rows=rows)


def _merged(
    batch: Batch, reports: Mapping[int, Report], compiled: runtime.Chunked, started: float, verification: Verification
) -> Report:
    """Merge the reports of all parts into one."""
    first = next(iter(reports.values()))
    name, most = batch.dim.name, batch.dim.most
    tasks = tuple(
        replace(
            task,
            name=f"{task.name}, {name}={size}",
            layers=tuple(f"{text}, {name}={size}" for text in task.layers),
            predicted=math.nan,
        )
        for size, report in reports.items()
        for task in report.tasks
    )
    notes = [note for note in (batch.source.note, *(report.note for report in reports.values())) if note]
    notes.append(verification_note(verification))
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
        **verification_fields(verification),
        stopped=f"{first.stopped}; {parts}",
        recalled=sum(report.recalled for report in reports.values()),
        note=" ".join(filter(None, dict.fromkeys(notes))),
        spent=spent,
        latency=math.nan,  # of one size only
        latency_low=math.nan,
        latency_high=math.nan,
    )


def _sum(steps: list[int]) -> str:
    """Return part sizes as a sum, such as "3 × 4 + 1 × 1"."""
    return " + ".join(f"{steps.count(size)} × {size}" for size in dict.fromkeys(steps))


def _report(
    network: Network,
    timings: Timings,
    budget: Budget,
    config: RunConfig,
    fixed: Callable[[], tuple[TaskReport, ...]],
    verification: Verification,
) -> Report:
    """Return the report of a compiled network. fixed: returns the reports of the functions of fixed sizes."""
    plain = "TVM's default schedule" if kind_of(network.compiled.target).binds_threads else "row by row"
    reports = fixed()
    tasks = (*(_task(part, plain) for part in network.parts if not (reports and part.is_fixed)), *reports)
    return Report(
        model=network.source.name,
        tasks=tasks,
        trials=budget.new_trials,
        recalled=budget.found_trials,
        rounds=0,
        seconds=network.seconds,
        total_seconds=time.monotonic() - config.started,
        **verification_fields(verification),
        precision=precision_of(network.compiled.target).name,
        stopped=f"one module for {', '.join(map(str, dict.fromkeys(network.dims.values())))}" + _left_out(timings),
        device=device_name(network.compiled.target),
        target=str(network.compiled.target),
        versions=versions(),
        seed=config.seed,
        note=" ".join(filter(None, (network.source.note, verification_note(verification)))),
    )


def _left_out(timings: Timings) -> str:
    """Return what the limits left out, as the end of a sentence."""
    if not timings.left_out:
        return ""
    return f"; the limits left out {counted(timings.left_out, 'timing')}, predictions were used instead"


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
        layers=part.layers,
        precision=_precision(part),
        rounded="factors" if _precision(part) != FLOAT32.name else "",
    )


def _precision(part: Part) -> str:
    """Return the name of the precision of a function's products."""
    return (BFLOAT16 if part.plan is not None and part.plan.rounds else FLOAT32).name
