"""Plot a report with matplotlib: the best latency over the seconds of the run, one panel per task.

Input: a report whose tasks have a history. Output: the figure.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike.errors import InvalidOption
from felixlike.report.picture import draw_steps, for_notebooks, new_figure
from felixlike.report.report_data import ReportData

MOST_DRAWN = 24
"""Upper limit on the tasks of a figure. Those with the most time in the model are drawn. Chosen by hand."""

_COLUMNS = 3
"""Panels per row. Chosen by hand."""

_WIDE = 3.0
"""Ratio of the largest to the smallest latency from which on the axis is logarithmic. Chosen by hand: below it the
labels of a logarithmic axis are unreadable.
"""


def figure_of(report: ReportData) -> Any:
    """Plot a report. Raise MissingDependency without matplotlib, InvalidOption if no task has a curve."""
    figure = new_figure(4.2, 3.0)
    known = [task for task in report.tasks if task.story.steps]
    if not known:
        raise InvalidOption(
            "the report has no curves: nothing was measured in this run, or an earlier version wrote it",
            where=report.model,
            remedy="tune with a larger budget, or plot a store: felixlike compare STORE --output FILE",
        )
    drawn = sorted(known, key=lambda task: -task.weight * task.story.steps[-1].latency)[:MOST_DRAWN]
    columns = min(_COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    figure.set_size_inches(4.2 * columns, 0.5 + 2.5 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(drawn) :]:
        panel.set_axis_off()
    for task, panel in zip(drawn, panels, strict=False):
        steps = task.story.steps
        at = [step.seconds for step in steps]
        best = [step.latency for step in steps]
        draw_steps(
            panel, [*at, max(at[-1], report.seconds if math.isfinite(report.seconds) else 0.0)], [*best, best[-1]]
        )
        if max(best) < _WIDE * min(best):
            panel.set_yscale("linear")
        panel.set_xlim(left=0.0)
        panel.set_title(task.title, fontsize="small", parse_math=False)
        panel.set_xlabel("seconds", fontsize="small")
        panel.set_ylabel("µs", fontsize="small")
    left_out = f"; {len(known) - len(drawn)} tasks omitted" if len(known) > len(drawn) else ""
    figure.suptitle(f"{report.model}: best latency over time{left_out}", parse_math=False)
    return for_notebooks(figure)
