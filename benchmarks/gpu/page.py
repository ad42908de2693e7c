"""Write the page of a device with a chapter for each part, from the journal.

Input: rows. Outputs: Markdown and JSON. Ratios are the other side's seconds ÷ felixlike's; above 1 felixlike is
faster.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine
from benchmarks.gpu.journal import Journal, Row
from benchmarks.gpu.parts import PARTS, STOCK
from benchmarks.results import FOLDER, geometric_mean
from felixlike._util.wording import counted

_SIDES = ("eager", "eager TF32", "autocast float16", "torch.compile", "reduce-overhead", "predicted", "tuned")


def write_page(journal: Journal, folder: Path, *, rehearsal: bool) -> Path:
    """Write both files and return the path of the page."""
    facts = machine.facts(rehearsal=rehearsal)
    rows = {part.name: journal.rows(part.name) for part in PARTS}
    name = "gpu_" + re.sub(r"[^a-z0-9]+", "_", str(facts["name"]).lower()).strip("_")
    page = folder / "page.md" if rehearsal else FOLDER / f"{name}.md"
    page.write_text(page_text(facts, rows))
    page.with_suffix(".json").write_text(json.dumps({"machine": facts, "parts": rows}, indent=1) + "\n")
    print(f"{page}", flush=True)
    return page


def page_text(facts: Mapping[str, Any], rows: Mapping[str, Mapping[str, Row]]) -> str:
    """Return the page as Markdown."""
    lines = [f"# {facts['name']}", "", "; ".join(f"{key}: {value}" for key, value in facts.items()) + "."]
    lines += ["", "Made by `python -m benchmarks.gpu`. Times are medians of calls that end when the GPU has ended."]
    for part, part_rows in rows.items():
        if part_rows:
            failed = {name: row["failed"] for name, row in part_rows.items() if "failed" in row}
            succeeded = {name: row for name, row in part_rows.items() if "failed" not in row}
            lines += ["", f"## {part}", "", *_TABLES[part](succeeded)]
            lines += ["", *(f"- {name} failed: {words}" for name, words in failed.items())] if failed else []
    return "\n".join(lines) + "\n"


def _points(rows: Mapping[str, Row]) -> list[str]:
    lines = _table("operator", "sketches", "understood", "points", "right", "others", "largest error", "spilling")
    total = Counter[str]()
    for name, row in rows.items():
        outcome_counts = Counter[str](row["outcomes"])
        total.update(outcome_counts)
        others = ", ".join(f"{n} {outcome}" for outcome, n in outcome_counts.items() if outcome != "ok") or "–"
        error = f"{row['error']:.1e}" if row["error"] is not None else "–"
        kernels = [kernel for of_point in row["kernels"] for kernel in of_point]
        spilling = f"{sum(k['local_bytes'] > 0 for k in kernels)} of {len(kernels)}" if kernels else "–"
        counts = (row["sketches"], row["understood"], row["points"], outcome_counts["ok"])
        lines.append(_line(name, *counts, others, error, spilling))
    built = sorted(seconds for row in rows.values() for seconds in row["build_seconds"])
    median = f" A candidate was built in {built[len(built) // 2]:.2f} s in the median." if built else ""
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in total.most_common()) or "nothing measured"
    return [*lines, "", f"All: {outcomes}.{median}"]


def _sides(rows: Mapping[str, Row]) -> list[str]:
    """Return the table of all sides. Ratios are to the tuned model, or to the predicted one if none was tuned."""
    present_sides = [side for side in _SIDES if any(side in row for row in rows.values())]
    ours = next((side for side in ("tuned", "predicted") if side in present_sides), "tuned")
    others = [side for side in present_sides if side != ours]
    lines = _table("", *(f"{side}, ms" for side in present_sides), *(f"{side} ÷ {ours}" for side in others), "trials")
    for name, row in rows.items():
        times = [f"{row[side] * 1e3:.4f}" if side in row else "–" for side in present_sides]
        lines.append(_line(name, *times, *(_ratio(row, side, ours) for side in others), row.get("trials", "–")))
    for side in others:
        ratios = [row[side] / row[ours] for row in rows.values() if side in row and ours in row]
        if ratios:
            lines += ["", f"{side} ÷ {ours}, geometric mean of {len(ratios)}: **{geometric_mean(ratios):.2f}**."]
    lines += _on_the_gpu(rows)
    simulated = {name: row["simulated_seconds"] for name, row in rows.items() if "simulated_seconds" in row}
    if simulated:
        lines += ["", "Simulated, ms: " + ", ".join(f"{n} {s * 1e3:.4f}" for n, s in simulated.items()) + "."]
    errors = [f"- {name}, {side}: {words}" for name, row in rows.items() for side, words in row["errors"].items()]
    return [*lines, "", *errors] if errors else lines


def _on_the_gpu(rows: Mapping[str, Row]) -> list[str]:
    """Return a table of the seconds on the GPU, if there are any."""
    busy = {name: row["on the GPU"] for name, row in rows.items() if row.get("on the GPU")}
    sides = [side for side in _SIDES if any(side in times for times in busy.values())]
    if not busy:
        return []
    lines = [
        "",
        "On the GPU, µs per call, from replays of a CUDA graph of 20 calls, so without the time to start kernels:",
    ]
    lines += ["", *_table("", *sides)]
    for name, times in busy.items():
        lines.append(_line(name, *(f"{times[side] * 1e6:.1f}" if side in times else "–" for side in sides)))
    return lines


def _precision(rows: Mapping[str, Row]) -> list[str]:
    sides = ("eager", "eager TF32", "autocast float16", "tuned")
    lines = _table("", *(f"{side}, ms" for side in sides), "TF32 ÷ tuned", *(f"{side}, off" for side in sides), "in")
    for name, row in rows.items():
        times = [f"{row[side] * 1e3:.4f}" if side in row else "–" for side in sides]
        off = [f"{row['off'][side]:.1e}" if side in row["off"] else "–" for side in sides]
        lines.append(_line(name, *times, _ratio(row, "eager TF32"), *off, ", ".join(row["on tensor cores"]) or "none"))
    errors = [f"- {name}, {side}: {words}" for name, row in rows.items() for side, words in row["errors"].items()]
    spilling = [k for row in rows.values() for k in row.get("kernels", ()) if k["local_bytes"]]
    lines += _on_the_gpu(rows)
    lines += ["", "Off: largest difference from float64, relative to the largest value."]
    lines += [f"Predicted to be best, but spilling: {counted(len(spilling), 'kernel')}."] if spilling else []
    return [*lines, "", *errors] if errors else lines


def _ratio(row: Row, side: str, ours: str = "tuned") -> str:
    return f"{row[side] / row[ours]:.2f}" if side in row and ours in row else "–"


def _search(rows: Mapping[str, Row]) -> list[str]:
    lines = _table("subgraph", "who", "candidates", "best, µs", "s to 95 % of the best known", "s to 99 %")
    names = dict.fromkeys(name.partition(", ")[0] for name in rows)
    for name in names:
        rows_by_side = {side: rows[f"{name}, {side}"] for side in ("ours", STOCK) if f"{name}, {side}" in rows}
        known = min((s for row in rows_by_side.values() for s in row["seconds"] if s), default=math.inf)
        for side, row in rows_by_side.items():
            best = min((s for s in row["seconds"] if s), default=math.inf)
            reached = (_reached(row, known / share) for share in (0.95, 0.99))
            lines.append(_line(name, side, len(row["seconds"]), f"{best * 1e6:.1f}", *reached))
    return lines


def _reached(row: Row, seconds: float) -> str:
    pairs = zip(row["seconds"], row["elapsed"], strict=True)
    return next((f"{elapsed:.1f}" for latency, elapsed in pairs if latency and latency <= seconds), "never")


def _dynamic(rows: Mapping[str, Row]) -> list[str]:
    lines = _table(
        "operator", "sizes", "within 10 % of cuBLAS", "faster", "cuBLAS ÷ ours, geometric mean", "error", "stages"
    )
    for name, row in rows.items():
        pairs = [(row["cuBLAS"][t], row["ours"][t]) for t in row["ours"] if row["ours"][t] and row["cuBLAS"].get(t)]
        near, faster = (sum(theirs * most >= ours for theirs, ours in pairs) for most in (1.1, 1.0))
        mean = f"{geometric_mean([theirs / ours for theirs, ours in pairs]):.2f}" if pairs else "–"
        error = "–" if row.get("error") is None else f"{row['error']:.1e}"
        lines.append(_line(name, len(pairs), near, faster, mean, error, "; ".join(row["stages"])))
    return lines


def _collecting(rows: Mapping[str, Row]) -> list[str]:
    return [
        f"{row['records']} records in the store; {row['tasks']} tasks in this run: "
        + (", ".join(f"{n} {outcome}" for outcome, n in row["ended"].items()) or "nothing new")
        + "."
        for row in rows.values()
    ]


_TABLES: dict[str, Callable[[Mapping[str, Row]], list[str]]] = {
    "points": _points,
    "subgraphs": _sides,
    "precision": _precision,
    "networks": _sides,
    "search": _search,
    "dynamic": _dynamic,
    "collecting": _collecting,
}


def _table(*names: str) -> list[str]:
    return [_line(*names), "| --- " * len(names) + "|"]


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
