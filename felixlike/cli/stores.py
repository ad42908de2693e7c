"""Implement `felixlike merge`, `export`, `import` and `compact`, for stores and MetaSchedule's databases.

Inputs: paths. Output: a line for each thing done, and for what could not be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike._util.wording import counted

if TYPE_CHECKING:
    from felixlike.records.merging import Merged
    from felixlike.records.metaschedule import Exchanged


def add_parser(commands: Any) -> None:
    """Add the parsers of `felixlike merge`, `export`, `import` and `compact`."""
    merge_parser = commands.add_parser(
        "merge",
        help="merge other stores into a store",
        description="Add the measurements of other stores to STORE, which is created if it does not exist. Duplicates "
        "are added once. Readable rows of damaged files are recovered; files without any are skipped and listed.",
    )
    merge_parser.add_argument("store", metavar="STORE")
    merge_parser.add_argument("sources", metavar="SOURCE", nargs="+")
    merge_parser.set_defaults(run=run_merge)

    export_parser = commands.add_parser(
        "export",
        help="export measurements to a MetaSchedule database",
        description="Write a store's valid measurements of one target and device as MetaSchedule's JSON database.",
    )
    export_parser.add_argument("store", metavar="STORE")
    export_parser.add_argument("folder", metavar="FOLDER")
    export_parser.add_argument(
        "--best", type=int, default=0, metavar="N", help="only the N fastest of each workload; 0: all"
    )
    _add_place(export_parser)
    export_parser.set_defaults(run=run_export)

    import_parser = commands.add_parser(
        "import",
        help="import measurements from a MetaSchedule database",
        description="Add the measurements of MetaSchedule (a folder with its JSON database) to STORE.",
    )
    import_parser.add_argument("folder", metavar="FOLDER")
    import_parser.add_argument("store", metavar="STORE")
    _add_place(import_parser)
    import_parser.set_defaults(run=run_import)

    compact_parser = commands.add_parser(
        "compact",
        help="reduce the size of a store's file",
        description="Check every row of a store and free unused space in its file. No measurement is removed.",
    )
    compact_parser.add_argument("store", metavar="STORE")
    compact_parser.set_defaults(run=run_compact)


def _add_place(parser: Any) -> None:
    """Add the options that select a target and a device."""
    parser.add_argument("--target", default="cpu", help="target of the measurements")
    parser.add_argument("--device", metavar="NAME", help="device of the measurements, default this machine's")


def run_merge(options: argparse.Namespace) -> int:
    """Merge all readable sources. Return 1 if a source was left out, else 0."""
    from felixlike import records
    from felixlike.errors import SourceLeftOut

    left_out = 0
    with records.open(options.store) as store:
        for source in options.sources:
            try:
                print(f"{source}: {_merged(records.merge(store, source))}")
            except SourceLeftOut as error:
                left_out += 1
                print(f"felixlike: skipped: {error}", file=sys.stderr)
        if left_out:
            total = f"skipped {left_out} of {len(options.sources)} files"
            print(f"felixlike: {total}; {options.store} has {store.count()} measurements.", file=sys.stderr)
    return 1 if left_out else 0


def run_export(options: argparse.Namespace) -> int:
    """Export measurements. Return 0."""
    from felixlike import records
    from felixlike.errors import InvalidOption
    from felixlike.records.metaschedule import export_database

    if options.best < 0:
        raise InvalidOption(
            f"expected --best of at least 0, got {options.best}", where="export", remedy="give 0 for all"
        )
    with records.open(options.store, read_only=True) as store:
        exported = export_database(
            store, options.folder, target=options.target, device=options.device, best=options.best
        )
    print(f"{options.folder}: {_exchanged(exported, 'measurement')}{_passed_over(exported)}.")
    return 0


def run_import(options: argparse.Namespace) -> int:
    """Import measurements. Return 0."""
    from felixlike import records
    from felixlike.records.metaschedule import import_database

    with records.open(options.store) as store:
        imported = import_database(store, options.folder, target=options.target, device=options.device)
    print(
        f"{options.store}: {_exchanged(imported, 'new measurement')}, {imported.known} known{_passed_over(imported)}."
    )
    return 0


def run_compact(options: argparse.Namespace) -> int:
    """Compact a store. Return 0."""
    from felixlike import records

    result = records.compact(Path(options.store))
    measured = counted(result.measurements, "measurement")
    print(f"{options.store}: {measured}, {result.before:,} bytes before, {result.after:,} after.")
    return 0


def _merged(merged: Merged) -> str:
    """Return the outcome of merging one source as text."""
    text = f"{counted(merged.added, 'new measurement')}, {merged.known} known."
    if merged.damage:
        lost = "no lost measurement was found"
        if merged.lost:
            lost = f"at least {counted(merged.lost, 'measurement')} {'is' if merged.lost == 1 else 'are'} lost"
        text += f" The file is damaged ({merged.damage}); readable rows were merged, {lost}."
    return text


def _exchanged(exchanged: Exchanged, what: str) -> str:
    """Return the numbers of records and workloads as text."""
    return f"{counted(exchanged.records, what)} of {counted(exchanged.workloads, 'workload')}"


def _passed_over(exchanged: Exchanged) -> str:
    """Return the skipped records as text, by reason."""
    parts = [f"{count} {reason}" for reason, count in exchanged.passed_over.items()]
    return f"; skipped: {', '.join(parts)}" if parts else ""
