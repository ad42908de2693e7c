"""Reports of tuning runs: the report object, text tables, the run log and the progress line."""

from felixlike.report.progress import make_progress
from felixlike.report.report import Report
from felixlike.report.report_data import TaskReport
from felixlike.report.runlog import RunLog
from felixlike.report.tables import report_text, store_text, tasks_text

__all__ = ["Report", "RunLog", "TaskReport", "make_progress", "report_text", "store_text", "tasks_text"]
