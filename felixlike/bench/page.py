"""Rows of networks as a page: a table, what is to be said of single rows, and a picture.

In: rows as `whole.measure` makes them. Out: text in Markdown, and a picture if matplotlib is there.
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
"""What the best of the others over ours is to be on average, geometrically."""

_COLUMNS = (EAGER, COMPILED, ONNX, TUNED)
_BEST_OF = (EAGER, CHANNELS_LAST, COMPILED, ONNX)
_MS = 1e3


def key(row: dict[str, Any]) -> tuple[str, int]:
    """What a row is of: the network and its batch. Rows of earlier versions are of one image or sentence."""
    return row["network"], row.get("batch", 1)


def ratio(row: dict[str, Any]) -> float | None:
    """The best of the others over ours, medians of a call; None where there was no other."""
    others = [row[side] for side in _BEST_OF if side in row]
    return min(others) / row[TUNED] if others else None


def text(rows: Sequence[dict[str, Any]], picture: str = "") -> str:
    """The page. picture: the name of the file beside it, if there is one."""
    lines = [
        "Milliseconds of a call, median / mean, in interleaved turns, each side in a process of its own with as",
        "many threads; eager in the better of two layouts (*: channels last). best ÷ tuned: the best of the first",
        "three over ours, ratios of medians, above 1 ours is faster. kernels ÷ call: what the kernels took when they",
        "were measured, over a call of ours. Errors: the largest, relative to the largest value of float64. in all:",
        "with import, compiling and the final check. –: not measured.",
        "",
        "| network | batch | "
        + " | ".join(_COLUMNS)
        + " | best ÷ tuned | kernels ÷ call | max error | trials | tuning s "
        "| in all s |",
        "| --- " * 12 + "|",
        *map(_line, rows),
        "",
    ]
    ratios = [found for row in rows if (found := ratio(row)) is not None]
    if ratios:
        lines.append(
            f"Best of the others ÷ tuned, geometric mean: **{geometric_mean(ratios):.2f}** (the goal: {GOAL}); "
            f"the least {min(ratios):.2f}."
        )
    untuned = [row[UNTUNED] / row[TUNED] for row in rows if UNTUNED in row]
    if untuned:
        lines.append(f"Untuned TVM ÷ tuned, geometric mean: **{geometric_mean(untuned):.1f}**.")
    if picture:
        lines += ["", f"![Best of the others over ours]({picture})"]
    notes = [note for row in rows for note in _notes(row)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def draw(rows: Sequence[dict[str, Any]], path: Path) -> bool:
    """Bars of the ratios, to each of the others; whether there was anything to draw with. Raises OutputNotWritable."""
    from felixlike.report.picture import new_figure, save_figure

    try:
        figure = new_figure(max(6.0, 1.1 * len(rows) + 2), 4.0)
    except MissingDependency:
        return False
    panel = figure.subplots()
    width = 0.8 / len(_COLUMNS[:-1])
    for place, side in enumerate(_COLUMNS[:-1]):
        bars = [(i + place * width, _seconds(row, side) / row[TUNED]) for i, row in enumerate(rows) if side in row]
        panel.bar([x for x, _ in bars], [y for _, y in bars], width, label=side)
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.axhline(GOAL, color="grey", linewidth=0.8, linestyle="--")
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter("{x:g}×")
    panel.set_xticks([i + width for i in range(len(rows))], [_name(row) for row in rows], rotation=30, ha="right")
    panel.set_ylabel("their time ÷ ours")
    panel.legend()
    save_figure(figure, path)
    return True


def _name(row: dict[str, Any]) -> str:
    name, batch = key(row)
    return name if batch == 1 else f"{name}, {batch}"


def _seconds(row: dict[str, Any], side: str) -> float:
    """The median of a side; of eager the better layout's."""
    sides = (EAGER, CHANNELS_LAST) if side == EAGER else (side,)
    return min(float(row[s]) for s in sides if s in row)


def _line(row: dict[str, Any]) -> str:
    name, batch = key(row)
    times = " | ".join(_cell(row, side) for side in _COLUMNS)
    found = ratio(row)
    share = f"{row['kernels'] / row[TUNED]:.2f}" if row.get("kernels") else "–"
    return (
        f"| {name} | {batch} | {times} | {'–' if found is None else f'**{found:.2f}**'} | {share} | {row['error']:.1e} "
        f"| {row['trials']} | {row['tuning_seconds']:.0f} | {row['total_seconds']:.0f} |"
    )


def _cell(row: dict[str, Any], side: str) -> str:
    """Median / mean in ms; rows of earlier versions have no means."""
    if side not in row:
        return "failed" if side in row.get("without", ()) else "–"
    last = side == EAGER and row.get(CHANNELS_LAST, row[side]) < row[side]
    shown = CHANNELS_LAST if last else side
    found = [row[shown], *([row["mean"][shown]] if shown in row.get("mean", ()) else [])]
    return " / ".join(f"{seconds * _MS:.3g}" for seconds in found) + ("*" if last else "")


def _notes(row: dict[str, Any]) -> list[str]:
    """What a reader should know of a row."""
    failed = [f"- {_name(row)}: {side} does not work here ({why})." for side, why in row.get("without", {}).items()]
    return failed + [f"- {_name(row)}: {warning}" for warning in row.get("warnings", ())]
