"""Display the report of a run as a table, as an HTML page with pictures, as a plot, or in a notebook.

Input: the data of `report_data.py`. Outputs: text as wide as the terminal, HTML, a matplotlib figure.
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
    """The report of one tuning run.

    `print(report)` shows it as a table, and notebooks show it as HTML. `ReportData` documents its fields.

    Example:
        >>> optimized = felixlike.optimize(model, inputs, seconds=60)
        >>> print(optimized.report)
        >>> optimized.report.save_html("report.html")
    """

    def __str__(self) -> str:
        """Return the report as text, as wide as the terminal and in characters that standard output can encode."""
        return showable(report_text(self, width=stream_width()))

    def save_html(self, path: str | Path) -> None:
        """Write the report as one HTML page with pictures. The page loads nothing from elsewhere.

        Args:
            path: File to write.

        Raises:
            OutputNotWritable: The file cannot be written.
        """
        write_page(page_of_report(self), path)

    def plot(self) -> Any:
        """Plot the best latency in µs over the seconds of the run, one panel per task.

        Returns:
            A matplotlib figure. Notebooks display it.

        Raises:
            MissingDependency: matplotlib is not installed.
            InvalidOption: The report has no curves: this run measured nothing, or an earlier version wrote the report.
        """
        from felixlike.report.plot import figure_of

        return figure_of(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return report_table(self)
