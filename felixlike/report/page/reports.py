"""Convert a report to a page.

Input: `ReportData`. Output: `Page`, or only its table for notebooks.
"""

from __future__ import annotations

import math

from felixlike._util.spent import REST
from felixlike._util.wording import counted
from felixlike.report.page.content import Group, Page, PageTask
from felixlike.report.page.markup import element, joined, named
from felixlike.report.page.render import task_table
from felixlike.report.report_data import ReportData, TaskReport
from felixlike.report.tables import call_notes, precision_words, run_notes, task_notes


def page_of_report(report: ReportData) -> Page:
    """Convert a report to a page.

    Args:
        report: Report of a run.
    """
    notes = [*call_notes(report), *task_notes(report), *([report.note] if report.note else [])]
    if not any(task.story.steps for task in report.tasks):
        notes.append("The report has no curves: nothing was measured in this run, or an earlier version wrote it.")
    return Page(
        title=report.model,
        facts=report_facts(report),
        groups=(_group(report),),
        spent=report_spent(report),
        activity=report.activity,
        notes=tuple(notes),
    )


def report_table(report: ReportData) -> str:
    """Render a report as HTML for notebooks: the model, the table of tasks, the course of the run.

    Args:
        report: Report of a run.
    """
    title = element("p", element("b", named(report.model)), " on ", named(report.device))
    notes = [element("p", note) for note in (*task_notes(report), *run_notes(report))]
    return joined(element("div", title, task_table(_group(report)), *notes))


def report_facts(report: ReportData) -> tuple[tuple[str, str], ...]:
    """Return the facts of a report's run, without the model's name."""
    facts = [
        ("Device", report.device),
        ("Target", report.target),
        ("Tuning", f"{counted(report.trials, 'candidate')} in {counted(report.rounds, 'round')}, {report.stopped}"),
        ("Seconds", f"{report.seconds:.1f} of tuning, {report.total_seconds:.1f} in all"),
    ]
    if words := precision_words(report):
        facts.append(("Products", words))
    if report.recalled:
        facts.append(("Before", f"{counted(report.recalled, 'candidate')} of earlier runs, from the store"))
    if report.reference:
        error = f"{report.error:.1e}" if math.isfinite(report.error) else "unknown"
        facts.append(("Maximum error", f"{error}, relative, of the whole model against {report.reference}"))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return (*facts, ("Seed", str(report.seed)), ("Versions", versions))


def report_spent(report: ReportData) -> dict[str, float]:
    """Return the seconds by step, with the rest of the total as "else"."""
    if not report.spent:
        return {"tuning": report.seconds, "before and after": max(0.0, report.total_seconds - report.seconds)}
    rest = report.total_seconds - math.fsum(report.spent.values())
    return {**report.spent, **({REST: report.spent.get(REST, 0.0) + rest} if rest > 0 else {})}


def _group(report: ReportData) -> Group:
    """Return the report's tasks as a group."""
    return Group(report.device, tuple(_task(task, report) for task in report.tasks))


def _task(task: TaskReport, report: ReportData) -> PageTask:
    """Convert the report of a task."""
    history = task.story
    unseen = "" if history.untuned else "The report does not contain its loops: an earlier version wrote it."
    return PageTask(
        name=task.name,
        key=task.workload,
        calls=task.weight,
        flops=task.flops,
        best=task.seconds,
        trials=task.trials + task.recalled,
        failures=task.failures | ({"in earlier runs": task.recalled_failures} if task.recalled_failures else {}),
        sketch="" if task.sketch is None else f"{task.sketch} of {task.sketches}",
        error=task.error,
        how=task.how,
        steps=tuple((step.seconds, step.latency) for step in history.steps),
        until=report.seconds,
        pairs=history.pairs,
        chosen=history.chosen,
        untuned=history.untuned,
        unseen=unseen if history.chosen or unseen else "It was compiled without a schedule.",
        point=task.point,
        building=history.building,
        running=history.running,
        layers=task.layers,
        spent=task.spent,
    )
