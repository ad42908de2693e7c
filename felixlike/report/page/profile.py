"""Draw what a run's seconds were spent on: a bar for the run and for each task, and the cores over time.

Inputs: seconds by step, and a run's activity. Output: one picture as inline SVG, with its legend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from felixlike._util.spent import BUILDING, CHECKING, HERE, TIMING
from felixlike.report.activity import Activity
from felixlike.report.page.markup import Markup, element, joined, lone

_GROUPS = {
    "importing": ("loading packages", "importing", "exporting", "decomposing", "fusing", "recalling", "reusing"),
    "searching": (
        *("sketches", "replaying", "formulas", "saturating", "descending", "ranking"),
        *("proposing", "learning", "choosing"),
    ),
    "building": (BUILDING, "scheduling", "sending"),
    "checking": (CHECKING, "references", "measuring"),
    "timing": (TIMING, "timing in the model", "timing"),
    "compiling": ("compiling", "linking", "keeping"),
    "verifying": ("verifying",),
}
"""Steps that have one colour."""
_ELSE = "else"
_OF_ROWS = {HERE: "searching", BUILDING: "building", CHECKING: "checking", TIMING: "timing"}
"""Colour of each row of an activity; what this process does has the colour of the search."""

_WIDTH, _LEFT, _RIGHT = 700, 190, 60
_BAR, _GAP, _CORE = 14, 6, 22
"""Sizes of the picture, in SVG units: whole, margins, a bar, between bars, and a core's height. Chosen by hand."""
_MOST = 24
"""Upper limit on the tasks with a bar, the longest ones. Chosen by hand."""
_LONGEST = 30
"""Upper limit on the characters of a name. Chosen by hand."""


def profile(spent: Mapping[str, float], tasks: Sequence[tuple[str, Mapping[str, float]]], activity: Activity) -> Markup:
    """Draw a run's seconds.

    Args:
        spent: Seconds by step.
        tasks: Name of each task and its seconds by step.
        activity: What the processes did over time.
    """
    sums = [(name, _grouped(steps)) for name, steps in tasks]
    longest = sorted((row for row in sums if _total(row[1]) > 0), key=lambda row: -_total(row[1]))[:_MOST]
    rows = [("the run", _grouped(spent)), *longest]
    scale = (_WIDTH - _LEFT - _RIGHT) / (max(_total(groups) for _, groups in rows) or 1.0)
    parts, y = [], _GAP
    for name, groups in rows:
        parts.append(_bar(name, groups, y, scale))
        y += _BAR + _GAP
    drawn, y = _cores(activity, y + _GAP)
    words = "Seconds of the run and of its tasks by what they were spent on, and the cores over time"
    picture = element(
        "svg", element("title", words), *parts, drawn, viewBox=f"0 0 {_WIDTH} {y}", role="img", class_="profile"
    )
    names = [*_GROUPS, _ELSE, *(["idle cores"] if activity.rows else [])]
    legend = [element("li", element("span", class_=f"key {_class(name)}"), name) for name in names]
    return joined(picture, element("ul", *legend, class_="legend"))


def _grouped(steps: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each group of steps."""
    group_of = {step: group for group, members in _GROUPS.items() for step in members}
    groups = dict.fromkeys([*_GROUPS, _ELSE], 0.0)
    for step, seconds in steps.items():
        if 0 <= seconds < math.inf:
            groups[group_of.get(step, _ELSE)] += seconds
    return groups


def _total(groups: Mapping[str, float]) -> float:
    """Return the seconds of all groups."""
    return math.fsum(groups.values())


def _class(group: str) -> str:
    """Return the class of a group's colour."""
    return f"of-{group.split()[0]}"


def _bar(name: str, groups: Mapping[str, float], y: float, scale: float) -> Markup:
    """Draw one bar with its name and its seconds."""
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    parts, x = [element("text", shown, x=_LEFT - 6, y=y + _BAR - 3, text_anchor="end")], float(_LEFT)
    for group, seconds in groups.items():
        if seconds > 0:
            words = element("title", f"{group}: {seconds:.2f} s")
            size = {"x": round(x, 1), "y": y, "width": round(seconds * scale, 1), "height": _BAR}
            parts.append(element("rect", words, class_=_class(group), **size))
            x += seconds * scale
    parts.append(element("text", f"{_total(groups):.1f} s", x=round(x, 1) + 4, y=y + _BAR - 3))
    return joined(*parts)


def _cores(activity: Activity, y: int) -> tuple[Markup, int]:
    """Draw how many cores did what over time, below a place; return also the place below it."""
    length = max(map(len, activity.rows.values()), default=0)
    if not length or not activity.width or not activity.cores:
        return Markup(""), y
    shown = min(activity.cores, 8)
    height = _CORE * shown
    field = _WIDTH - _LEFT - _RIGHT
    step = field / length
    parts = [
        element("text", f"{activity.cores} cores", x=_LEFT - 6, y=y + height / 2 + 4, text_anchor="end"),
        lone("rect", class_="of-idle", x=_LEFT, y=y, width=field, height=height),
    ]
    for place in range(length):
        top = float(y + height)
        for name, group in _OF_ROWS.items():
            if name not in activity.rows:
                continue
            tall = min(activity.busy(name, place) / (activity.width * activity.cores) * height, top - y)
            if tall > 0.05:
                top -= tall
                size = {"x": round(_LEFT + place * step, 1), "y": round(top, 1), "width": round(step, 1)}
                parts.append(lone("rect", class_=_class(group), height=round(tall, 1), **size))
    y += height
    parts.append(element("text", "0 s", x=_LEFT, y=y + 14))
    end = f"{length * activity.width:.3g} s"
    parts.append(element("text", end, x=_LEFT + field, y=y + 14, text_anchor="end"))
    idle = f"idle {activity.idle:.0%}"
    parts.append(element("text", idle, x=_LEFT + field + 4, y=y - height / 2 + 4))
    return joined(*parts), y + 22
