"""Reports as tables for people."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from felixlike.report.report import Report, TaskReport

if TYPE_CHECKING:
    from felixlike.records import WorkloadSummary


def report_table(report: Report) -> RenderableType:
    """The report as something rich can print."""
    table = Table(title=f"{report.model} on {report.device}", title_justify="left")
    for name, justify in (
        ("task", "left"),
        ("calls", "right"),
        ("MFLOP", "right"),
        ("sketch", "right"),
        ("latency", "right"),
        ("GFLOPS", "right"),
        ("trials", "right"),
        ("failed", "right"),
        ("max error", "right"),
        ("schedule", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for task in report.tasks:
        table.add_row(*_row(task))
    return Group(table, *(Text(line) for line in _notes(report)))


def report_text(report: Report, *, width: int = 140) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(report_table(report))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().rstrip()


def store_table(title: str, workloads: Sequence[WorkloadSummary]) -> RenderableType:
    """What a store holds, a line for each workload and device."""
    table = Table(title=title, title_justify="left")
    for name in ("workload", "device", "measured", "right", "best", "GFLOPS"):
        table.add_column(name, justify="left" if name in ("workload", "device") else "right", overflow="fold")
    for w in workloads:
        rate = "–" if w.best is None or not w.flops else f"{w.flops / w.best / 1e9:.1f}"
        best = "–" if w.best is None else latency(w.best)
        table.add_row(w.name, w.device, str(w.measurements), str(w.right), best, rate)
    total = sum(w.measurements for w in workloads)
    return Group(table, Text(f"{total} measurements of {len({w.task for w in workloads})} workloads."))


def _row(task: TaskReport) -> tuple[str, ...]:
    return (
        task.name,
        f"{task.weight:g}",
        f"{task.flops / 1e6:.1f}",
        "–" if task.sketch is None else f"{task.sketch} of {task.sketches}",
        latency(task.seconds),
        "–" if not math.isfinite(task.seconds) or not task.flops else f"{task.flops / task.seconds / 1e9:.1f}",
        str(task.trials),
        str(sum(task.failures.values())),
        "–" if task.error is None else f"{task.error:.1e}",
        task.how,
    )


def _notes(report: Report) -> list[str]:
    lines = []
    unmeasured = [t.name for t in report.tasks if t.how == "unmeasured"]
    untuned = [t.name for t in report.tasks if t.how == "untuned"]
    if unmeasured:
        lines.append(f"Checked but not measured, for lack of budget: {', '.join(unmeasured)}.")
    if untuned:
        lines.append(f"Compiled without a schedule: {', '.join(untuned)}.")
    for task in report.tasks:
        for sketch, reason in task.sampled.items():
            lines.append(f"{task.name}, sketch {sketch}: tuned by sampling, since {reason}")
        if task.note:
            lines.append(f"{task.name}: {task.note}")
    lines.append(
        f"{report.trials} candidates in {report.rounds} rounds and {report.seconds:.0f} s of tuning "
        f"({report.total_seconds:.0f} s in all)"
        + (f", after {report.recalled} candidates from the store" if report.recalled else "")
        + f"; {report.stopped}."
    )
    error = f"{report.error:.1e}" if math.isfinite(report.error) else "unknown"
    lines.append(f"Maximum relative error of the whole model against {report.reference}: {error}.")
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines.append(f"Seed {report.seed}; {versions}.")
    return lines


def latency(seconds: float) -> str:
    """Seconds in a readable unit; a dash where there is none."""
    if not math.isfinite(seconds):
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
