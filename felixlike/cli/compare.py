"""Implement `felixlike compare`: compare what several stores found, and how soon.

Inputs: paths of stores. Outputs: tables, JSON, or a plot of the best latency over candidates and over seconds.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike compare`."""
    parser = commands.add_parser(
        "compare",
        help="compare the results of stores",
        description="Compare stores task by task: the best latency over candidates and over seconds, and the "
        "candidates and seconds needed to reach 90, 95 and 99 % of the best known. Each device is compared separately. "
        "STORE may also be a packed store (.sqlite.xz).",
    )
    parser.add_argument("stores", metavar="STORE", nargs="+")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, including curves")
    parser.add_argument("--output", metavar="FILE", help="plot the curves to this file (.svg, .png, .pdf)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the comparison. Return 0."""
    import json

    from felixlike.report.comparison import compare
    from felixlike.report.comparison_text import MOST_DRAWN, comparison_text, draw
    from felixlike.report.layout import stream_width
    from felixlike.report.picture import image_path
    from felixlike.training.packed import opened

    if options.output is not None:
        image_path(options.output)  # fail before the long work
    with ExitStack() as stack:
        names = _names(options.stores)
        comparison = compare({name: stack.enter_context(opened(path)) for name, path in names.items()})
    if options.json:
        print(json.dumps(comparison.to_json()))
    else:
        print(comparison_text(comparison, width=stream_width()))
    if options.output is not None:
        drawn = draw(comparison, options.output)
        left_out = sum(len(group.tasks) for group in comparison.groups) - drawn
        if not options.json:
            more = (
                f"; {left_out} tasks are not drawn: at most {MOST_DRAWN} are, and only those with a valid candidate"
                if left_out
                else ""
            )
            print(f"\nDrawn in {options.output}{more}.")
    return 0


def _names(paths: list[str]) -> dict[str, Path]:
    """Return short, distinct names of the stores. Raise InvalidOption if a store is given twice."""
    from felixlike.errors import InvalidOption

    files = [Path(path) for path in paths]
    real = [file.expanduser().resolve() for file in files]
    twice = next((str(file) for i, file in enumerate(files) if real[i] in real[:i]), None)
    if twice is not None:
        raise InvalidOption("the store is given twice", where=twice, remedy="give each store once")
    short = [file.name.removesuffix(".xz").removesuffix(".sqlite") or file.name for file in files]
    return {name if short.count(name) == 1 else str(file): file for name, file in zip(short, files, strict=True)}
