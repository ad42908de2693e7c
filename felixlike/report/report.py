"""The report of a run, which shows itself: as a table, as a page with pictures, in notebooks.

In: what `report_data.py` keeps. Out: text for the terminal's width, HTML, a figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from felixlike._encoding import showable
from felixlike.report.layout import stream_width
from felixlike.report.page import page_of_report, report_table, write_page
from felixlike.report.report_data import ReportData
from felixlike.report.tables import report_text


@dataclass(frozen=True, slots=True)
class Report(ReportData):
    """The report of a run; see `ReportData` for what it holds."""

    def __str__(self) -> str:
        """As wide as the terminal, if standard output is one; in signs that it can show."""
        return showable(report_text(self, width=stream_width()))

    def save_html(self, path: str | Path) -> None:
        """Write one page for browsers, with pictures and without anything from elsewhere. Raises OutputNotWritable."""
        write_page(page_of_report(self), path)

    def plot(self) -> Any:
        """Best latency over time, a panel a task, as a matplotlib figure, which notebooks show.

        Raises MissingDependency without matplotlib, InvalidOption where nothing was measured in this run."""
        from felixlike.report.plot import figure_of

        return figure_of(self)

    def _repr_html_(self) -> str:
        """For notebooks: the table."""
        return report_table(self)
