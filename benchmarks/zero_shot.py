"""Show what optimization without measurements brings, and how soon: python -m benchmarks.zero_shot.

Reads the rows of `felixlike bench networks` (docs/results/networks.json), which time `optimize(model, inputs,
trials=0)` in new processes, with an empty cache and with that of the first run, beside the first answers of the other
sides. Writes docs/results/zero_shot.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.results import FOLDER, geometric_mean
from felixlike.bench.page import products
from felixlike.bench.results import stated
from felixlike.bench.sides import TUNED, ZERO_SHOT

_OTHERS = {
    "OpenVINO": ("OpenVINO float32",),
    "ONNX Runtime": ("ONNX Runtime",),
    "torch.compile": ("torch.compile", "torch.compile, max-autotune"),
}
"""Other sides, by column. The sooner one of several is shown."""

_INTRODUCTION = """\
Made by `python -m benchmarks.zero_shot` of the rows of [networks](networks.md) in float32, batch 1.

With `trials=0` schedules are predicted and checked, none is measured. First and again: seconds from the model in memory
to its first answer in a new process, imports, compilation and the final check included, with an empty cache and with
that of the first run. Milliseconds: medians of a call, in turns; speed: tuned ÷ predicted. –: not measured."""


def main() -> None:
    """Write the page."""
    chapters = [_chapter(machine) for machine in json.loads((FOLDER / "networks.json").read_text())["machines"]]
    page = "\n\n".join(["# zero_shot", _INTRODUCTION, *filter(None, chapters)]) + "\n"
    (FOLDER / "zero_shot.md").write_text(page)
    print(page, flush=True)


def _chapter(machine: dict[str, Any]) -> str:
    """Return the table of one kind of CPU; empty if it has no rows."""
    rows = [row for row in machine["data"]["rows"] if _is_shown(row)]
    return "\n".join([f"## {stated(machine)}", "", *_lines(rows)]) if rows else ""


def _is_shown(row: dict[str, Any]) -> bool:
    return products(row) == "float32" and row.get("batch", 1) == 1 and ZERO_SHOT in row.get("startup", {})


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    others = " | ".join(f"{name}: first / again s" for name in _OTHERS)
    yield f"| network | first s | again s | {others} | predicted ms | tuned ms | speed |"
    yield "| --- " * (6 + len(_OTHERS)) + "|"
    for row in rows:
        first, again = row["startup"][ZERO_SHOT]
        predicted, tuned = row[ZERO_SHOT], row[TUNED]
        others = " | ".join(_soonest(row, sides) for sides in _OTHERS.values())
        yield (
            f"| {row['network']} | {first:.1f} | {again:.1f} | {others} "
            f"| {predicted * 1e3:.3g} | {tuned * 1e3:.3g} | {tuned / predicted:.2f} |"
        )
    speeds = [row[TUNED] / row[ZERO_SHOT] for row in rows]
    yield ""
    yield f"Geometric mean of the speeds: {geometric_mean(speeds):.2f}, the least {min(speeds):.2f}."


def _soonest(row: dict[str, Any], sides: tuple[str, ...]) -> str:
    """Return the seconds of a side that answers first, and those of the one that does so again."""
    known = [row["startup"][side] for side in sides if side in row["startup"]]
    return " / ".join(f"{min(seconds):.2g}" for seconds in zip(*known, strict=True)) if known else "–"


if __name__ == "__main__":
    main()
