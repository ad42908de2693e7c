"""Show a report or a store as one self-contained HTML page."""

from felixlike.report.page.content import Page
from felixlike.report.page.file import write_page
from felixlike.report.page.render import LIVE, page_body, page_text, task_table
from felixlike.report.page.reports import page_of_report, report_table
from felixlike.report.page.stores import StorePage

__all__ = [
    "LIVE",
    "Page",
    "StorePage",
    "page_body",
    "page_of_report",
    "page_text",
    "report_table",
    "task_table",
    "write_page",
]
