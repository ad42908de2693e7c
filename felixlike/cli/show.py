"""`felixlike show`: what an artefact or a store holds, for people.

In: a path. Out: the run's report, or a table of workloads and their best schedules.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from felixlike.errors import InvalidArtefact

_SQLITE = b"SQLite format 3\x00"


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("show", help="a readable report of an artefact or a store")
    parser.add_argument("path", metavar="PATH")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report; 0."""
    from rich.console import Console

    path = Path(options.path)
    if not path.is_file():
        raise InvalidArtefact("there is no such file", where=str(path), remedy="check the path")
    with path.open("rb") as file:
        is_store = file.read(len(_SQLITE)) == _SQLITE
    Console(highlight=False).print(_store(path) if is_store else _artefact(path))
    return 0


def _artefact(path: Path) -> Any:
    from felixlike import deploy
    from felixlike.report import Report, report_table

    return report_table(Report.from_json(deploy.read_report(path)))


def _store(path: Path) -> Any:
    from felixlike import records
    from felixlike.report import store_table

    with records.open(path, read_only=True) as store:
        return store_table(str(path), store.summary())
