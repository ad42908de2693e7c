"""Format reports, stores and lists of tasks as text tables.

Inputs: a report, the summary of a store, or a model's tasks; a width in columns, or None (see `layout`). Output: text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from felixlike._util.spent import REST
from felixlike._util.wording import counted
from felixlike.report.layout import Column, paragraph, table
from felixlike.report.report_data import ReportData, TaskReport

if TYPE_CHECKING:
    from felixlike.frontend import Task
    from felixlike.records import WorkloadSummary

_TASKS = (
    Column("task", right=False, least=20),
    Column("calls", rank=4),
    Column("MFLOP", rank=8),
    Column("sketch", rank=9),
    Column("latency"),
    Column("GFLOPS", rank=2),
    Column("trials", rank=5),
    Column("failed", rank=6),
    Column("max error", rank=3),
    Column("schedule", right=False, rank=1),
)
"""Columns of a report."""

_WORKLOADS = (
    Column("workload", right=False, least=20),
    Column("device", right=False, least=16, rank=1),
    Column("measured", rank=2),
    Column("right", rank=3),
    Column("best"),
    Column("GFLOPS", rank=4),
)
"""Columns of a store's summary."""

_MODEL = (Column("task", right=False, least=20), Column("key", right=False), Column("MFLOP"), Column("calls", rank=1))
"""Columns of a list of tasks."""


_NAME_RANK = 7
"""Rank of the column of names beside the layers."""


_SPENT = (Column("spent on", right=False), Column("seconds"), Column("share"))
"""Columns of the table of what a run's seconds were spent on."""

_LEAST = 0.01
"""Share of a run from which a step has a row of its own. Chosen by hand."""


def report_text(report: ReportData, *, width: int | None = None) -> str:
    """Format a report as plain text.

    Args:
        report: Report of a run.
        width: Columns of text; None does not wrap.
    """
    lines = paragraph(f"{report.model} on {report.device}", width)
    columns, rows = _with_layers(_TASKS, [task.title for task in report.tasks], [_row(task) for task in report.tasks])
    lines += ["", *table(columns, rows, width), ""]
    for note in (*task_notes(report), *run_notes(report)):
        lines += paragraph(note, width)
    if report.spent:
        lines += ["", *table(_SPENT, _spent_rows(report), width)]
    return "\n".join(lines)


def _spent_rows(report: ReportData) -> list[tuple[str, str, str]]:
    """Return the steps of a run, the longest first, with their seconds and shares; the last row is all others."""
    whole = math.fsum(report.spent.values()) or 1.0
    long = {step: taken for step, taken in report.spent.items() if taken >= _LEAST * whole and step != REST}
    shown = [*sorted(long.items(), key=lambda pair: -pair[1]), (REST, whole - math.fsum(long.values()))]
    return [(step, f"{taken:.2f}", f"{taken / whole:.0%}") for step, taken in shown]


def store_text(title: str, workloads: Sequence[WorkloadSummary], *, timings: int = 0, width: int | None = None) -> str:
    """Format the summary of a store, one line per workload and device.

    A single device is named once, in the title.

    Args:
        title: First line.
        workloads: Summaries of the store's workloads.
        timings: Number of measurements of kernels for dynamic sizes.
        width: Columns of text; None does not wrap.
    """
    devices = {w.device for w in workloads}
    device_column = next(i for i, column in enumerate(_WORKLOADS) if column.name == "device")
    left_out = {device_column} if len(devices) == 1 else set()
    columns = [column for i, column in enumerate(_WORKLOADS) if i not in left_out]
    rows = [[cell for i, cell in enumerate(_workload(w)) if i not in left_out] for w in workloads]
    lines = paragraph(title + (f", measured on {devices.pop()}" if left_out else ""), width)
    if rows:
        lines += ["", *table(columns, rows, width), ""]
    measured = counted(sum(w.measurements for w in workloads), "measurement")
    more = f" {counted(timings, 'measurement')} of kernels for dynamic sizes." if timings else ""
    lines += paragraph(f"{measured} of {counted(len({w.task for w in workloads}), 'workload')}.{more}", width)
    return "\n".join(lines)


def tasks_text(tasks: Sequence[Task], *, width: int | None = None) -> str:
    """Format a model's tasks, one line each.

    Args:
        tasks: Tasks of a model.
        width: Columns of text; None does not wrap.
    """
    rows = [(t.name, t.key[:8], f"{t.flops / 1e6:.3g}", f"{t.weight:g}") for t in tasks]
    return "\n".join(table(*_with_layers(_MODEL, [t.title for t in tasks], rows), width))


def _with_layers(
    columns: Sequence[Column], titles: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], list[Sequence[str]]]:
    """Return a table of tasks with their layers as the first column, if a task's title is not its name.

    The column of names is then omitted early in narrow tables.
    """
    if all(row[0] == title for title, row in zip(titles, rows, strict=True)):
        return list(columns), list(rows)
    layers, name = replace(columns[0], name="layers"), replace(columns[0], rank=_NAME_RANK)
    return [layers, *columns[1:], name], [[t, *row[1:], row[0]] for t, row in zip(titles, rows, strict=True)]


def _row(task: TaskReport) -> tuple[str, ...]:
    """Return the cells of a task."""
    return (
        task.name,
        f"{task.weight:g}",
        f"{task.flops / 1e6:.1f}",
        "–" if task.sketch is None else f"{task.sketch} of {task.sketches}",
        latency(task.seconds),
        rate(task.flops, task.seconds),
        str(task.trials + task.recalled),
        str(sum(task.failures.values()) + task.recalled_failures),
        "–" if task.error is None else f"{task.error:.1e}",
        task.how,
    )


def _workload(w: WorkloadSummary) -> tuple[str, ...]:
    """Return the cells of a workload."""
    best = math.nan if w.best is None else w.best
    return w.name, w.device, str(w.measurements), str(w.right), latency(best), rate(w.flops, best)


def rate(flops: float, seconds: float) -> str:
    """Return the GFLOPS of a call as text; a dash if unknown."""
    return "–" if not math.isfinite(seconds) or not flops else f"{flops / seconds / 1e9:.1f}"


def task_notes(report: ReportData) -> list[str]:
    """Return remarks on single tasks."""
    lines = []
    unmeasured = dict.fromkeys(t.title for t in report.tasks if t.how == "unmeasured")
    untuned = dict.fromkeys(t.title for t in report.tasks if t.how == "untuned")
    if unmeasured:
        lines.append(f"Predicted and checked, not measured, for lack of budget: {', '.join(unmeasured)}.")
    if untuned:
        lines.append(f"Compiled without a schedule: {', '.join(untuned)}.")
    if words := precision_words(report):
        lines.append(f"Products: {words}.")
    for task in report.tasks:
        title = f"{task.layers[0]} ({task.name})" if task.layers else task.name
        for sketch, reason in task.sampled.items():
            lines.append(f"{title}, sketch {sketch}: tuned by sampling, since {reason}")
        if task.note:
            lines.append(f"{title}: {task.note}")
    return lines


def precision_words(report: ReportData) -> str:
    """Return the precision of products as text; empty if float32 was requested."""
    if report.precision == "float32":
        return ""
    on_host = '"llvm"' in report.target
    reduced: dict[str, dict[str, None]] = {}
    for task in report.tasks:
        if task.precision != "float32":
            what = "weights" if on_host and task.rounded != "factors" else "factors" if on_host else "on tensor cores"
            reduced.setdefault(what, {})[task.title] = None
    if not reduced:
        return f"{report.precision} was requested, but all are float32"
    parts = [f"{report.precision} {what} in {', '.join(titles)}" for what, titles in reduced.items()]
    return "; ".join([*parts, "float32 elsewhere"])


def run_notes(report: ReportData) -> list[str]:
    """Return sentences on the course of the run."""
    lines = [
        f"{counted(report.trials, 'candidate')} in {counted(report.rounds, 'round')} and {report.seconds:.0f} s of "
        f"tuning ({report.total_seconds:.0f} s in all)"
        + (f", after {counted(report.recalled, 'candidate')} from the store" if report.recalled else "")
        + f"; {report.stopped}."
    ]
    if math.isfinite(idle := report.activity.idle):
        lines.append(
            f"The {counted(report.activity.cores, 'core')} had no work of this run for {idle:.0%} of the time."
        )
    if report.another_percent < 0:
        lines.append("The latest rounds found nothing faster.")
    elif math.isfinite(report.another_percent):
        lines.append(f"At their pace, another percent would take about {_seconds(report.another_percent)} of tuning.")
    lines += call_notes(report)
    if report.reference:
        error = f"{report.error:.1e}" if math.isfinite(report.error) else "unknown"
        lines.append(f"Maximum relative error of the whole model against {report.reference}: {error}.")
    if report.rows and (report.changed or report.precision != "float32"):
        rows = counted(report.rows, "row")
        lines.append(f"The largest output is in another place than there in {report.changed} of {rows}.")
    if report.note:
        lines.append(report.note)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines.append(f"Seed {report.seed}; {versions}.")
    return lines


def _seconds(seconds: float) -> str:
    """Return a time as text: seconds, minutes or hours."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"


def call_notes(report: ReportData) -> list[str]:
    """Return sentences on whole calls of the model, and on what tuning gained."""
    lines = []
    if math.isfinite(report.latency):
        spread = f"{latency(report.latency_low)} to {latency(report.latency_high)}"
        times = f", {report.speedup:.3g}x the speed of eager PyTorch" * math.isfinite(report.speedup)
        lines.append(f"A call of the tuned model takes {latency(report.latency)} (half of the calls {spread}){times}.")
    if math.isfinite(report.eager):
        spread = f"{latency(report.eager_low)} to {latency(report.eager_high)}"
        lines.append(f"The original takes {latency(report.eager)} in eager PyTorch (half of the calls {spread}).")
    timed = [task for task in report.tasks if math.isfinite(task.predicted) and math.isfinite(task.seconds)]
    if timed:
        predicted = math.fsum(task.weight * task.predicted for task in timed)
        tuned = math.fsum(task.weight * task.seconds for task in timed)
        ratio = f"{predicted / tuned:.2f}"
        part = "the model" if len(timed) == len(report.tasks) else f"{len(timed)} of {len(report.tasks)} tasks"
        if ratio == "1.00":
            lines.append("Tuning found nothing faster than the predicted schedules.")
        else:
            lines.append(
                f"Tuning made {part} {ratio}x faster than the predicted schedules (sum of kernels: {latency(tuned)}"
                f" instead of {latency(predicted)})."
            )
    return lines


def latency(seconds: float) -> str:
    """Return seconds as text in a readable unit; a dash if not finite."""
    if not math.isfinite(seconds):
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
