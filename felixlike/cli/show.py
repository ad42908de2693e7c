"""Implement `felixlike show`: show what an artefact or a store contains.

Input: a path. Output: the run's report, or a table of workloads and their best schedules; on request also as an HTML
page with pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike._util import option_checks as checks
from felixlike.errors import InvalidArtefact

if TYPE_CHECKING:
    from felixlike.report.page import Page

_SQLITE = b"SQLite format 3\x00"
"""First bytes of a SQLite file."""


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike show`."""
    parser = commands.add_parser("show", help="print a report of an artefact or a store")
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("--html", metavar="PAGE", help="also write an HTML page with pictures")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report. Return 0."""
    from felixlike._util.atomic_files import check_writable
    from felixlike.report.layout import stream_width

    path = checks.path(options.path, "show", error=InvalidArtefact)
    if not path.is_file():
        what = "expected a file, got a directory" if path.is_dir() else "there is no such file"
        raise InvalidArtefact(what, where=str(path), remedy="give the path of a saved model or of a store")
    with path.open("rb") as file:
        is_store = file.read(len(_SQLITE)) in (_SQLITE, b"")  # a run that was killed may leave an empty store
    if options.html is not None:
        check_writable(options.html, path)  # fail before the long work
    width = stream_width()
    print(_store(path, width) if is_store else _artefact(path, width))
    if options.html is not None:
        from felixlike.report.page import write_page

        write_page(_page(path, is_store=is_store), options.html)
        print(f"\nPage written to {options.html}.")
    return 0


def _page(path: Path, *, is_store: bool) -> Page:
    """Return the page of a store or an artefact."""
    from felixlike import runtime
    from felixlike.report import Report
    from felixlike.report.page import StorePage, page_of_report

    return StorePage(path).build() if is_store else page_of_report(Report.from_json(runtime.read_report(path)))


def _artefact(path: Path, width: int | None) -> str:
    """Return the report of an artefact as text."""
    from felixlike import runtime
    from felixlike.report import Report, report_text

    return report_text(Report.from_json(runtime.read_report(path)), width=width)


def _store(path: Path, width: int | None) -> str:
    """Return the summary of a store as text."""
    from felixlike import records
    from felixlike.records.record import UKERNELS
    from felixlike.report import store_text

    with records.open(path, read_only=True) as store:
        return store_text(str(path), store.summary(), timings=store.count(UKERNELS), width=width)
