"""Format the results of networks as a page: a table, remarks on single rows, and a picture.

Inputs: rows of `whole.measure`. Outputs: Markdown text, and a picture if matplotlib is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from felixlike.bench.results import geometric_mean
from felixlike.bench.sides import CHANNELS_LAST, COMPILED, EAGER, ONNX, UNTUNED
from felixlike.bench.whole import TUNED
from felixlike.errors import MissingDependency

GOAL = 1.5
"""Target of the geometric mean of best other ÷ tuned."""

_COLUMNS = (EAGER, COMPILED, ONNX, TUNED)
"""Sides with a column of the table."""
_BEST_OF = (EAGER, CHANNELS_LAST, COMPILED, ONNX)
"""Sides among which the best other is chosen."""
_MS = 1e3
"""Milliseconds per second."""


def key(row: dict[str, Any]) -> tuple[str, int]:
    """Return the network and the batch size of a row. Rows of earlier versions have batch size 1."""
    return row["network"], row.get("batch", 1)


def ratio(row: dict[str, Any]) -> float | None:
    """Return the best latency of the other sides ÷ ours, medians of a call; None without another side."""
    others = [row[side] for side in _BEST_OF if side in row]
    return min(others) / row[TUNED] if others else None


def text(rows: Sequence[dict[str, Any]], picture: str = "") -> str:
    """Return the page. picture: name of the picture's file; empty without one."""
    lines = [
        "Milliseconds per call, median / mean. Sides are timed alternately, each in its own process with the same",
        "number of threads; eager in the faster of two layouts (*: channels last). best ÷ tuned: median of the fastest",
        "of the first three ÷ median of tuned; above 1 tuned is faster. kernels ÷ call: measured time of the kernels ÷",
        "time of a tuned call. max error: relative to the largest value of the float64 result. in all s: with import,",
        "compilation and verification. –: not measured.",
        "",
        "| network | batch | "
        + " | ".join(_COLUMNS)
        + " | best ÷ tuned | kernels ÷ call | max error | trials | tuning s "
        "| in all s |",
        "| --- " * 12 + "|",
        *map(_line, rows),
        "",
    ]
    ratios = [best for row in rows if (best := ratio(row)) is not None]
    if ratios:
        lines.append(
            f"Best of the others ÷ tuned, geometric mean: **{geometric_mean(ratios):.2f}** (goal: {GOAL}); "
            f"minimum {min(ratios):.2f}."
        )
    untuned = [row[UNTUNED] / row[TUNED] for row in rows if UNTUNED in row]
    if untuned:
        lines.append(f"Untuned TVM ÷ tuned, geometric mean: **{geometric_mean(untuned):.1f}**.")
    if picture:
        lines += ["", f"![Best of the others ÷ tuned]({picture})"]
    notes = [note for row in rows for note in _notes(row)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def draw(rows: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw bars of other ÷ tuned for each other side. Return False without matplotlib. Raise OutputNotWritable."""
    from felixlike.report.picture import new_figure, save_figure

    try:
        figure = new_figure(8.0, 0.33 * len(rows) + 1.2)
    except MissingDependency:
        return False
    panel = figure.subplots()
    width = 0.8 / len(_COLUMNS[:-1])
    for place, side in enumerate(_COLUMNS[:-1]):
        bars = [(i + place * width, _seconds(row, side) / row[TUNED]) for i, row in enumerate(rows) if side in row]
        panel.barh([y for y, _ in bars], [x - 1.0 for _, x in bars], width, left=1.0, label=side)
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.axvline(GOAL, color="grey", linewidth=0.8, linestyle="--")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}×")
    panel.set_yticks([i + width for i in range(len(rows))], [_name(row) for row in rows])
    panel.margins(y=0.01)
    panel.invert_yaxis()
    panel.set_xlabel("milliseconds of the other side ÷ ours")
    figure.legend(loc="outside upper center", ncols=len(_COLUMNS) - 1, frameon=False)
    save_figure(figure, path)
    return True


def _name(row: dict[str, Any]) -> str:
    """Return the name of a row, with its batch size unless it is 1."""
    name, batch = key(row)
    return name if batch == 1 else f"{name}, {batch}"


def _seconds(row: dict[str, Any], side: str) -> float:
    """Return the median of a side, for eager that of the faster layout."""
    sides = (EAGER, CHANNELS_LAST) if side == EAGER else (side,)
    return min(float(row[s]) for s in sides if s in row)


def _line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    name, batch = key(row)
    times = " | ".join(_cell(row, side) for side in _COLUMNS)
    best = ratio(row)
    share = f"{row['kernels'] / row[TUNED]:.2f}" if row.get("kernels") else "–"
    return (
        f"| {name} | {batch} | {times} | {'–' if best is None else f'**{best:.2f}**'} | {share} | {row['error']:.1e} "
        f"| {row['trials']} | {row['tuning_seconds']:.0f} | {row['total_seconds']:.0f} |"
    )


def _cell(row: dict[str, Any], side: str) -> str:
    """Return median / mean of a side in ms. Rows of earlier versions have no mean."""
    if side not in row:
        return "failed" if side in row.get("without", ()) else "–"
    is_channels_last = side == EAGER and row.get(CHANNELS_LAST, row[side]) < row[side]
    layout = CHANNELS_LAST if is_channels_last else side
    latencies = [row[layout], *([row["mean"][layout]] if layout in row.get("mean", ()) else [])]
    return " / ".join(f"{seconds * _MS:.3g}" for seconds in latencies) + ("*" if is_channels_last else "")


def _notes(row: dict[str, Any]) -> list[str]:
    """Return remarks on a row: failed sides and warnings."""
    failed = [f"- {_name(row)}: {side} does not work here ({why})." for side, why in row.get("without", {}).items()]
    return failed + [f"- {_name(row)}: {warning}" for warning in row.get("warnings", ())]
