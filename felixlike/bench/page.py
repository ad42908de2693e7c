"""Format the results of networks as a page: tables, remarks on sides and rows, and a picture.

Inputs: rows of `whole.measure`. Outputs: Markdown text, and a picture if matplotlib is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from felixlike.bench.results import geometric_mean
from felixlike.bench.sides import RIVAL_SIDES, RIVALS, TUNED, UNTUNED, ZERO_SHOT
from felixlike.errors import MissingDependency

GOAL, LEAST = 1.3, 1.05
"""Targets of best other ÷ tuned: its geometric mean, and its minimum."""

_SIDES = (*RIVAL_SIDES, UNTUNED, ZERO_SHOT, TUNED)
"""All sides, in the order of tables."""

_MS = 1e3
"""Milliseconds per second."""

_FLOAT32, _BFLOAT16 = "float32", "bfloat16"
"""Precision of rows of earlier versions, which have none, and the one of which sides may compute a part."""


def key(row: dict[str, Any]) -> tuple[str, int]:
    """Return the network and the batch size of a row. Rows of earlier versions have batch size 1."""
    return row["network"], row.get("batch", 1)


def products(row: dict[str, Any]) -> str:
    """Return the precision of products that a row is about. Rows of earlier versions are about float32."""
    return str(row.get("products", _FLOAT32))


def ratio(row: dict[str, Any]) -> float | None:
    """Return the best latency of the other sides ÷ ours, medians of a call; None without another side.

    Only sides with our precision and right answers count.
    """
    fastest = fastest_rival(row)
    return None if fastest is None else float(row[fastest] / row[TUNED])


def fastest_rival(row: dict[str, Any]) -> str | None:
    """Return the fastest other side with our precision and right answers; None without one."""
    others = [side for side in RIVAL_SIDES if _is_right(row, side) and _is_equal(row, side)]
    return min(others, key=lambda side: float(row[side]), default=None)


def text(rows: Sequence[dict[str, Any]], picture: str = "") -> str:
    """Return the page, with a section for each precision of products if there are several.

    picture: name of the picture's file; empty without one.
    """
    precisions = sorted({products(row) for row in rows} or {_FLOAT32}, key=lambda name: (name != _FLOAT32, name))
    if len(precisions) == 1:
        return _section(rows, picture)
    parts = [
        f"## Products in {name}\n\n{_section([row for row in rows if products(row) == name], picture * (not place))}"
        for place, name in enumerate(precisions)
    ]
    return "\n\n".join(parts)


def _section(rows: Sequence[dict[str, Any]], picture: str) -> str:
    """Return the tables and remarks of rows of one precision of products."""
    columns = [*_columns(rows), TUNED]
    header = ("network", "batch", *columns, "best ÷ tuned", "kernels ÷ call", "max error")
    lines = [
        "Milliseconds per call, median / mean. Sides are timed alternately, each in its own process with the same",
        "number of threads. Some columns show the faster of two sides, with a star for the second: eager in the",
        "default layout or channels last, torch.compile in its default mode or frozen with max-autotune, ONNX",
        "Runtime without or with its transformer optimizer. A cell names the precision if tuned has another. best ÷",
        "tuned: median of the fastest other side with equal precision and right answers ÷ median of tuned; above 1",
        "tuned is faster. kernels ÷ call: measured time of the kernels ÷ time of a tuned call. max error: relative",
        "to the largest value of the float64 result. in all s: with import, compilation and verification. –: not",
        "measured.",
        "",
        *table((*header, "trials", "tuning s", "in all s"), (_cells(row, columns) for row in rows)),
        "",
    ]
    ratios = [best for row in rows if (best := ratio(row)) is not None]
    if ratios:
        lines.append(
            f"Best of the others ÷ tuned, geometric mean: **{geometric_mean(ratios):.2f}** (goal: {GOAL}); "
            f"minimum {min(ratios):.2f} (goal: {LEAST})."
        )
    untuned = [row[UNTUNED] / row[TUNED] for row in rows if UNTUNED in row]
    if untuned:
        lines.append(f"Untuned TVM ÷ tuned, geometric mean: **{geometric_mean(untuned):.1f}**.")
    if picture:
        lines += ["", f"![Best of the others ÷ tuned]({picture})"]
    lines += [*_precisions(rows), *_startup(rows)]
    notes = [*_settings(rows), *_failures(rows), *(note for row in rows for note in _notes(row))]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def verdict(row: dict[str, Any]) -> str:
    """Return a sentence about which side is the fastest, for each precision."""
    by_precision: dict[str, list[tuple[float, str]]] = {}
    for side in (*RIVAL_SIDES, TUNED):
        if _is_right(row, side):
            precision = _precision(row, TUNED if _is_equal(row, side) else side)
            by_precision.setdefault(precision, []).append((row[side], side))
    ours = _precision(row, TUNED)
    parts = []
    for precision in sorted(by_precision, key=lambda name: (name != ours, name)):
        (seconds, first), *others = sorted(by_precision[precision])
        gain = f", {others[0][0] / seconds:.2f} times as fast as {others[0][1]}" if others else ""
        kind = "is the fastest" if others else "is the only side"
        parts.append(f"at {precision}, {first} {kind} ({seconds * _MS:.3g} ms per call{gain})")
    sentence = "; ".join(parts) + "."
    return sentence[0].upper() + sentence[1:]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw bars of other ÷ tuned for each other side. Return False without matplotlib. Raise OutputNotWritable."""
    from felixlike.report.picture import new_figure, save_figure

    try:
        figure = new_figure(8.0, 0.33 * len(rows) + 1.5)
    except MissingDependency:
        return False
    panel = figure.subplots()
    columns = _columns(rows)
    width = 0.8 / len(columns)
    for place, column in enumerate(columns):
        bars = [
            (i + place * width, row[side] / row[TUNED]) for i, row in enumerate(rows) if (side := _best(row, column))
        ]
        panel.barh([y for y, _ in bars], [x - 1.0 for _, x in bars], width, left=1.0, label=column)
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.axvline(GOAL, color="grey", linewidth=0.8, linestyle="--")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}×")
    panel.set_yticks([i + width for i in range(len(rows))], [_name(row) for row in rows])
    panel.margins(y=0.01)
    panel.invert_yaxis()
    panel.set_xlabel("milliseconds of the other side ÷ ours")
    figure.legend(loc="outside upper center", ncols=min(3, len(columns)), frameon=False)
    save_figure(figure, path)
    return True


def _name(row: dict[str, Any]) -> str:
    """Return the name of a row, with its batch size unless it is 1."""
    name, batch = key(row)
    return name if batch == 1 else f"{name}, {batch}"


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns of other sides that have results."""
    return [column for column in RIVALS if any(_best(row, column) for row in rows)]


def _best(row: dict[str, Any], column: str) -> str | None:
    """Return the fastest side of a column, of those with right answers if there are any; None if none was timed."""
    timed = [side for side in RIVALS.get(column, (column,)) if side in row]
    right = [side for side in timed if _is_right(row, side)]
    return min(right or timed, key=lambda side: float(row[side]), default=None)


def _is_right(row: dict[str, Any], side: str) -> bool:
    """Return whether a side was timed and its answers were not wrong."""
    return side in row and side not in row.get("wrong", ())


def _is_equal(row: dict[str, Any], side: str) -> bool:
    """Return whether a side has our precision, or both multiply numbers in bfloat16."""
    ours, other = _precision(row, TUNED), _precision(row, side)
    return ours == other or all(_BFLOAT16 in precision for precision in (ours, other))


def _precision(row: dict[str, Any], side: str) -> str:
    """Return the precision of a side."""
    return str(row.get("precision", {}).get(side, _FLOAT32))


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *lines)]


def _cells(row: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """Return a row of the first table."""
    name, batch = key(row)
    best = ratio(row)
    return [
        name,
        str(batch),
        *(_cell(row, column) for column in columns),
        "–" if best is None else f"**{best:.2f}**",
        f"{row['kernels'] / row[TUNED]:.2f}" if row.get("kernels") else "–",
        f"{row['error']:.1e}",
        str(row["trials"]),
        f"{row['tuning_seconds']:.0f}",
        f"{row['total_seconds']:.0f}",
    ]


def _cell(row: dict[str, Any], column: str) -> str:
    """Return median / mean of a column's fastest side in ms. Rows of earlier versions have no mean."""
    side = _best(row, column)
    if side is None:
        return "failed" if column in row.get("without", ()) else "–"
    latencies = [row[side], *([row["mean"][side]] if side in row.get("mean", ()) else [])]
    star = "*" if side != column else ""
    remarks = [] if _is_equal(row, side) else [_precision(row, side)]
    remarks += [] if _is_right(row, side) else ["wrong"]
    remark = f" ({', '.join(remarks)})" if remarks else ""
    return " / ".join(f"{seconds * _MS:.3g}" for seconds in latencies) + star + remark


def _side_table(rows: Sequence[dict[str, Any]], field: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the sides that have a field in any row, and the rows that have it."""
    having = [row for row in rows if row.get(field)]
    return [side for side in _SIDES if any(side in row[field] for row in having)], having


def _precisions(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of precisions and errors."""
    sides, having = _side_table(rows, "errors")
    if not having:
        return
    yield from (
        "",
        "Precision that each side reported after its first answer, and the maximum error of that answer:",
        "",
    )

    def cell(row: dict[str, Any], side: str) -> str:
        if side not in row["errors"]:
            return "–"
        wrong = "" if _is_right(row, side) else " (wrong)"
        return f"{_precision(row, side)}, {row['errors'][side]:.1e}{wrong}"

    yield from table(("network", *sides), ([_name(row), *(cell(row, side) for side in sides)] for row in having))


def _startup(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of seconds to the first answer."""
    sides, having = _side_table(rows, "startup")
    if not having:
        return
    yield from (
        "",
        "Seconds from the model in memory to its first answer in a new process, imports of the side's packages and",
        "compilation included: with empty caches / again. zero-shot: felixlike with predicted schedules (`trials=0`),",
        "verification included, and its milliseconds per call. tuned: the saved model is opened.",
        "",
    )

    def cell(row: dict[str, Any], side: str) -> str:
        seconds = row["startup"].get(side, ())
        return " / ".join(f"{number:.2g}" if number < 10 else f"{number:.0f}" for number in seconds) or "–"

    lines = (
        [_name(row), *(cell(row, side) for side in sides), f"{row[ZERO_SHOT] * _MS:.3g}" if ZERO_SHOT in row else "–"]
        for row in having
    )
    yield from table(("network", *sides, "zero-shot ms"), lines)


def _settings(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each version and settings of a side, with the networks unless they are equal for all."""
    sides, having = _side_table(rows, "settings")
    for side in sides:
        names: dict[str, list[str]] = {}
        for row in having:
            if side in row["settings"]:
                words = f"{row['version'][side]}, {row['settings'][side]}, threads: {row['threads']}"
                names.setdefault(words, []).append(_name(row))
        for words, networks in names.items():
            yield f"- {side}: {words}{f' ({_listed(networks)})' if len(names) > 1 else ''}."


def _failures(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each reason why a side was left out."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for failure in row.get("without", {}).items():
            names.setdefault(failure, []).append(_name(row))
    for (side, why), networks in names.items():
        yield f"- {side} does not work here ({why}): {_listed(networks)}."


def _notes(row: dict[str, Any]) -> list[str]:
    """Return remarks on a row: wrong answers and warnings."""
    wrong = [f"- {_name(row)}: the answer of {side} is wrong ({why})." for side, why in row.get("wrong", {}).items()]
    return wrong + [f"- {_name(row)}: {warning}" for warning in row.get("warnings", ())]


def _listed(names: Sequence[str]) -> str:
    """Return names as a list; those of networks with a batch size contain commas."""
    return "; ".join(names)
