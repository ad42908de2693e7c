"""Display a comparison of stores as tables and as a plot of curves.

Input: a `Comparison`. Outputs: text, an image file.
"""

from __future__ import annotations

import math
from pathlib import Path

from felixlike.report.comparison import ComparedTask, Comparison, Group, Side
from felixlike.report.curves import QUALITIES, Reached, times_to
from felixlike.report.layout import Column, paragraph, table
from felixlike.report.picture import draw_steps, image_path, new_figure, save_figure
from felixlike.report.tables import latency

_TASKS = (
    Column("task", right=False, least=20),
    Column("store", right=False, least=12),
    Column("measured", rank=3),
    Column("right", rank=5),
    Column("seconds", rank=4),
    Column("best"),
    Column("of best known", rank=1),
    *(Column(f"to {share:.0%}", rank=2) for share in QUALITIES),
)
"""Columns of the table of tasks."""
_STORES = (
    Column("store", right=False, least=12),
    Column("tasks", rank=1),
    Column("first or level"),
    Column("mean of best known"),
)
"""Columns of the table of stores."""

MOST_DRAWN = 40
"""Upper limit on the tasks of a plot. Chosen by hand: more rows are too tall to display."""


def comparison_text(comparison: Comparison, *, width: int | None = None) -> str:
    """Return a comparison as text: notes, then the tables of each device.

    width: columns of text; None does not wrap.
    """
    lines: list[str] = []
    for note in comparison.notes:
        lines += [*paragraph(note, width), ""]
    for group in comparison.groups:
        if group.tasks:
            lines += [*_group_lines(group, width), ""]
    shares = ", ".join(f"{share:.0%}" for share in QUALITIES)
    meaning = f"To {shares}: candidates measured (and seconds spent on the task) until the best latency reached "
    return "\n".join(
        [
            *lines,
            *paragraph(meaning + "that share of the best known in all stores of the table; –: not reached.", width),
        ]
    )


def _group_lines(group: Group, width: int | None) -> list[str]:
    """Return the tables of one device."""
    lines = [*paragraph(f"Measured on {group.device}", width), ""]
    lines += table(_TASKS, [_row(group.label(task), task, side) for task in group.tasks for side in task.sides], width)
    if len(group.stores) > 1:
        rows = [(s.store, str(s.tasks), str(s.first), _percent(s.share)) for s in group.summaries()]
        lines += ["", *table(_STORES, rows, width)]
    return lines


def _row(label: str, task: ComparedTask, side: Side) -> tuple[str, ...]:
    """Return the cells of one store for one task."""
    series = side.series
    return (
        label,
        side.store,
        str(len(series)),
        str(series.right),
        f"{series.seconds:.1f}",
        latency(series.best),
        _percent(task.known / series.best),
        *(_until(reached) for _, reached in times_to(series, task.known, QUALITIES)),
    )


def _percent(share: float) -> str:
    """Return a share in percent, or a dash if it is not positive and finite."""
    return f"{share:.1%}" if math.isfinite(share) and share > 0 else "–"


def _until(reached: Reached | None) -> str:
    """Return the candidates and seconds that were needed, or a dash."""
    return "–" if reached is None else f"{reached.candidates} ({reached.seconds:.1f} s)"


def draw(comparison: Comparison, path: str | Path) -> int:
    """Plot the curves over candidates and over seconds as an image file, one row per task.

    Args:
        comparison: Comparison of stores.
        path: Image file to write (.png, .svg or .pdf).

    Returns:
        Number of plotted tasks: the first MOST_DRAWN with a valid candidate.

    Raises:
        MissingDependency: matplotlib is not installed.
        OutputNotWritable: The file cannot be written.
    """
    path = image_path(path)
    several = len(comparison.groups) > 1
    rows = [
        (group.label(task) + (f"\n{group.device}" if several else ""), task)
        for group in comparison.groups
        for task in group.tasks
        if math.isfinite(task.known)
    ][:MOST_DRAWN]
    figure = new_figure(9.0, 0.6 + 2.6 * max(1, len(rows)))
    panels = figure.subplots(max(1, len(rows)), 2, squeeze=False)
    stores = list(dict.fromkeys(side.store for _, task in rows for side in task.sides))
    for (title, task), (left, right) in zip(rows, panels, strict=False):
        for side in task.sides:
            color = f"C{stores.index(side.store) % 10}"
            best = side.series.best_so_far.tolist()
            draw_steps(left, [float(n) for n in range(1, len(best) + 1)], best, label=side.store, color=color)
            draw_steps(right, side.series.elapsed.tolist(), best, label=side.store, color=color)
        left.set_ylabel(f"{title}\nµs")
        left.legend(fontsize="small")
    panels[-1][0].set_xlabel("candidates")
    panels[-1][1].set_xlabel("seconds")
    save_figure(figure, path)
    return len(rows)
