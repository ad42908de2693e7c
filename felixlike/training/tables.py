"""Format scores as Markdown tables, for terminals and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from felixlike.training.samples import Workload
from felixlike.training.scores import Quality, mean_quality

_NAMES = ("rank", "top_1", "top_5", "median")
_HEADINGS = ("rank correlation", "top-1", "top-5", "median")


def quality_table(rows: Sequence[tuple[str, int, str, Quality]]) -> str:
    """Return a table with a row for each workload (name, candidates, device, quality) and one for the means."""
    lines = [_row(["workload", "candidates", "device", *_HEADINGS]), _row(["---"] * 7)]
    lines += [_row([name, str(count), device, *_cells(quality)]) for name, count, device, quality in rows]
    mean = mean_quality([quality for *_, quality in rows])
    return "\n".join([*lines, _row([f"mean of {len(rows)}", "", "", *_cells(mean)])])


def summary_table(title: str, rows: Sequence[tuple[str, int, Quality]]) -> str:
    """Return a table with a row for each (name, number of workloads, mean quality)."""
    lines = [_row([title, "workloads", *_HEADINGS]), _row(["---"] * 6)]
    return "\n".join([*lines, *(_row([name, str(count), *_cells(quality)]) for name, count, quality in rows)])


def operator_rows(found: Sequence[tuple[Workload, Quality]]) -> list[tuple[str, int, Quality]]:
    """Return (operator, number of workloads, mean quality), operators with most workloads first."""
    groups: dict[str, list[Quality]] = {}
    for workload, quality in found:
        groups.setdefault(workload.operator, []).append(quality)
    ordered = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [(operator, len(members), mean_quality(members)) for operator, members in ordered]


def _cells(quality: Quality) -> list[str]:
    """Return the scores as cells."""
    return [f"{getattr(quality, name):.2f}" for name in _NAMES]


def _row(cells: Sequence[str]) -> str:
    """Return a Markdown row."""
    return f"| {' | '.join(cells)} |"
