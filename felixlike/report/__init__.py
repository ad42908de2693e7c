"""What happened: a run's report, tables, and the progress line."""

from felixlike.report.progress import make_progress
from felixlike.report.report import Report, TaskReport
from felixlike.report.runlog import RunLog
from felixlike.report.tables import report_table, report_text, store_table

__all__ = ["Report", "RunLog", "TaskReport", "make_progress", "report_table", "report_text", "store_table"]
