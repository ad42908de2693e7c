"""Render a page as HTML: the summary, the table of tasks, the seconds by activity, and the pictures of each task.

Input: `Page`. Output: a whole document, or its body for a live page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from felixlike._util.wording import counted
from felixlike.report.page.charts import bars, curve, in_order, scatter
from felixlike.report.page.content import Group, Page, PageTask
from felixlike.report.page.loops import loops_picture
from felixlike.report.page.markup import Markup, element, joined, named
from felixlike.report.page.profile import profile
from felixlike.report.page.style import SCRIPT, STYLE
from felixlike.report.tables import latency, rate

MOST_SHOWN = 40
"""Upper limit on the tasks per device with pictures. The table has all tasks. Chosen by hand."""

_OPEN = 6
"""Number of tasks whose pictures are open at first. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Live:
    """The script of a live page.

    Attributes:
        nonce: Content-Security-Policy nonce of the script.
        version: Version of the content that the page shows.
    """

    nonce: str
    version: str


LIVE = Live
"""Alias of `Live` for callers outside of this package."""

_LEGEND = (
    "The boxes are loops, the outermost first, with their extents; parallel: distributed over cores; "
    "vector: one instruction; unrolled: no loop remains. ⊕= accumulates, f(…) lists the tensors that are read."
)
"""Explanation of the pictures of loops."""


def page_text(page: Page, live: Live | None = None) -> str:
    """Render a page as a whole HTML document, which loads nothing from elsewhere.

    Args:
        page: Content of the page.
        live: Script of a live page; None for a static page.
    """
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<link rel="icon" href="data:,">'),
        element("title", f"{page.title} – felixlike"),
        element("style", Markup(STYLE)),
    )
    version = live.version if live is not None else None
    body = element("main", page_body(page), id="page", data_version=version)
    if live is not None:
        note = "a script updates this page; reload the page if scripts are disabled"
        body = joined(
            element("p", note, class_="quiet", id="live"), body, element("script", Markup(SCRIPT), nonce=live.nonce)
        )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def page_body(page: Page) -> str:
    """Render the body of a page as HTML.

    Args:
        page: Content of the page.
    """
    several = len(page.groups) > 1
    parts = [
        element("h1", named(page.title)),
        element("p", page.state, class_="state") if page.state else None,
        _facts(page.facts),
        *(element("p", note) for note in page.notes),
    ]
    for number, group in enumerate(page.groups):
        parts.append(element("h2", "Tasks on " if several else "Tasks", named(group.device) if several else None))
        parts.append(task_table(group, links=f"task-{number}-") if group.tasks else element("p", "None yet."))
    parts.append(_seconds(page))
    for number, group in enumerate(page.groups):
        parts.append(_pictures(group, number, several=several))
    return joined(*parts)


def task_table(group: Group, *, links: str = "") -> Markup:
    """Render the tasks of a group as an HTML table.

    Args:
        group: Tasks of one device.
        links: Prefix of the anchors of the tasks' pictures; empty without pictures.
    """
    columns = ("task", "calls", "best", "share", "GFLOPS", "trials", "failed", "sketch", "max error", "schedule")
    left = ("task", "sketch", "schedule")
    head = [element("th", name, class_="left" if name in left else None, scope="col") for name in columns]
    rows = []
    for place, task in enumerate(group.tasks):
        name = named(task.title)
        if links and place < MOST_SHOWN:
            name = element("a", name, href=f"#{links}{place}")
        if task.layers:
            name = joined(name, " ", element("span", named(task.name), class_="quiet"))
        share = group.share(task)
        cells = (
            name,
            "–" if task.calls is None else f"{task.calls:g}",
            latency(task.best),
            f"{share:.1%}" if math.isfinite(share) else "–",
            rate(task.flops, task.best),
            str(task.trials),
            _failures(task),
            task.sketch or "–",
            "–" if task.error is None or not math.isfinite(task.error) else f"{task.error:.1e}",
            task.how or "–",
        )
        rows.append(element("tr", *(_cell(column, cell, left) for column, cell in zip(columns, cells, strict=True))))
    return element("table", element("thead", element("tr", *head)), element("tbody", *rows))


def _cell(column: str, cell: str, left: Sequence[str]) -> Markup:
    """Render a cell of the table."""
    style = ["left"] * (column in left) + ["name"] * (column == "task")
    return element("td", cell, class_=" ".join(style) or None, data_label=column)


def _failures(task: PageTask) -> str:
    """Return the number of failures as text, by status."""
    if not task.failures:
        return "0"
    parts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(task.failures.items()))
    return parts if len(task.failures) == 1 else f"{sum(task.failures.values())} ({parts})"


def _facts(facts: Sequence[tuple[str, str]]) -> Markup:
    """Render names and values as a list."""
    rows = [joined(element("dt", name), element("dd", named(value))) for name, value in facts]
    return element("dl", *rows, class_="facts")


def _seconds(page: Page) -> Markup | None:
    """Render the seconds by activity: of the wall clock, and of the measuring processes."""
    tasks = [task for group in page.groups for task in group.tasks]
    building, running = math.fsum(t.building for t in tasks), math.fsum(t.running for t in tasks)
    parts: list[Markup] = []
    if page.spent:
        parts += [
            element("h3", "Wall-clock time of the latest run" if page.state else "Wall-clock time"),
            profile(page.spent, [(task.title, task.spent) for task in tasks], page.activity),
            bars(page.spent),
        ]
    if building or running:
        words = "Measuring processes, in parallel"
        parts += [element("h3", words), bars({"building": building, "running": running})]
    return joined(element("h2", "Time by activity"), *parts) if parts else None


def _pictures(group: Group, number: int, *, several: bool) -> Markup | None:
    """Render the pictures of a group."""
    tasks = group.tasks[:MOST_SHOWN]
    if not tasks:
        return None
    title = joined("Each task in pictures, on ", named(group.device)) if several else "Each task in pictures"
    left_out = len(group.tasks) - len(tasks)
    more = f" {counted(left_out, 'task')} more in the table only." if left_out else ""
    details = [
        _details(task, f"task-{number}-{place}", is_open=number == 0 and place < _OPEN)
        for place, task in enumerate(tasks)
    ]
    return joined(element("h2", title), element("p", _LEGEND + more, class_="quiet"), *details)


def _details(task: PageTask, identity: str, *, is_open: bool) -> Markup:
    """Render one task with its pictures."""
    panels = []
    if task.steps:
        panels.append(_figure("Best latency over time", curve(task.steps, task.until)))
    if len(task.pairs) > 1:
        share = in_order(task.pairs)
        order = f": the faster of two candidates was predicted in {share:.0%} of pairs" * math.isfinite(share)
        panels.append(_figure(f"Predicted against measured{order}", scatter(task.pairs)))
    if task.chosen:
        panels.append(_figure(f"The chosen schedule{_point(task)}", loops_picture(task.chosen)))
    if task.untuned:
        panels.append(_figure("Untuned: the original function", loops_picture(task.untuned)))
    words = element("p", task.unseen, class_="quiet") if task.unseen and not task.chosen else None
    notes = [element("p", note) for note in task.notes]
    if task.layers:
        layers = ", ".join(dict.fromkeys(task.layers))
        notes.insert(0, element("p", "Layers: ", named(layers), ". Task: ", named(task.name), ".", class_="quiet"))
    summary = element("summary", element("b", named(task.title)), " ", element("span", latency(task.best)))
    nothing = element("p", "No further data.", class_="quiet") if not panels and not task.unseen else None
    return element(
        "details", summary, *notes, element("div", *panels, class_="panels"), words, nothing, id=identity, open=is_open
    )


def _point(task: PageTask) -> str:
    """Return the variables of a schedule as text."""
    if not task.point:
        return ""
    return ": " + ", ".join(f"{name} = {value}" for name, value in task.point.items())


def _figure(caption: str, drawn: Markup) -> Markup:
    """Render a picture with a caption."""
    return element("figure", element("figcaption", caption), drawn)
