"""Text laid out for the width there is: tables that fold names and leave out columns, paragraphs, indented lines.

In: rows of text and a width in columns of a terminal; None where there is none (a pipe, a file): then nothing is folded
or left out, and the text depends on what it says alone. Out: lines. Nothing is cut off.
"""

from __future__ import annotations

import io
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Between two columns."""

_RULE = box.SIMPLE_HEAD
"""A line below the names of the columns, and no other."""

_NARROWEST = 20
"""No layout for less: text that is too wide is better than a letter a line."""


@dataclass(frozen=True, slots=True)
class Column:
    """right: numbers are aligned at their ends.  rank: columns of the highest rank are left out first where there is no
    room; 0 stays.  least: a column of names may be folded, down to this width; 0: never."""

    name: str
    right: bool = True
    rank: int = 0
    least: int = 0


def stream_width(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal that a stream (standard output) is shown on; None where it goes elsewhere.

    The environment's COLUMNS, where it is set, counts for pipes and files, too."""
    stream = sys.stdout if stream is None else stream
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return max(_NARROWEST, int(asked))
    try:
        if stream is None or not stream.isatty():
            return None
        return max(_NARROWEST, os.get_terminal_size(stream.fileno()).columns or 80)
    except (OSError, ValueError, AttributeError):  # closed, or somebody's own
        return None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The rows under their columns' names, and a last line with the names of the columns that are left out, if any."""
    sizes = [max(map(text_width, cells)) for cells in zip([column.name for column in columns], *rows, strict=True)]
    least = [min(size, column.least) if column.least else size for column, size in zip(columns, sizes, strict=True)]
    kept = _kept(columns, least, width)
    drawn = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i in kept:
        drawn.add_column(
            Text(columns[i].name), justify="right" if columns[i].right else "left", no_wrap=not columns[i].least
        )
    for row in rows:
        drawn.add_row(*(Text(row[i], overflow="fold") for i in kept))
    lines = _lines(drawn, _total(sizes) if width is None else width)
    left_out = [column.name for i, column in enumerate(columns) if i not in kept]
    if left_out:
        text = f"Left out for want of room (of {_total(least)} columns): {', '.join(left_out)}."
        lines += paragraph(text, width)
    return lines


def _total(sizes: Iterable[int]) -> int:
    """The width of a table."""
    sizes = list(sizes)
    return sum(sizes) + _GAP * (len(sizes) - 1)


def _kept(columns: Sequence[Column], least: Sequence[int], width: int | None) -> list[int]:
    """Indices of the columns that there is room for.  least: the width that each must have."""
    kept = list(range(len(columns)))
    while width is not None and _total(least[i] for i in kept) > width:
        worst = max(kept, key=lambda i: columns[i].rank)
        if not columns[worst].rank:
            break
        kept.remove(worst)
    return kept


def _lines(drawn: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False, _environ={})
    with console.capture() as captured:
        console.print(drawn)
    return [line.rstrip() for line in captured.get().splitlines()]


def paragraph(text: str, width: int | None, *, indent: int = 2) -> list[str]:
    """A text as lines; those after the first are indented."""
    return _wrapped(text, width, "", " " * indent)


def entry(label: str, text: str, width: int | None, *, column: int) -> list[str]:
    """A label, and a text of one or more lines that begins at a column and goes on there; below the label where that
    leaves no room."""
    lines, space = text.splitlines() or [""], " " * column
    starts = [label.ljust(column), *[space] * (len(lines) - 1)]
    fits = width is not None and all(column + text_width(line) <= width for line in lines)
    if width is None or fits or width >= column + _NARROWEST:
        return [part for start, line in zip(starts, lines, strict=True) for part in _wrapped(line, width, start, space)]
    start = " " * (len(label) - len(label.lstrip()) + 2)
    return [label.rstrip(), *(part for line in lines for part in _wrapped(line, width, start, start))]


def indented(text: str, width: int | None, *, hanging: int) -> list[str]:
    """Lines that are indented already (a program, formulas): what one goes on in is `hanging` deeper than the line."""
    lines = []
    for line in text.splitlines():
        start = line[: len(line) - len(line.lstrip())]
        lines += _wrapped(line.lstrip(), width, start, start + " " * hanging)
    return lines


def _wrapped(text: str, width: int | None, first: str, later: str) -> list[str]:
    if width is None or text_width(first + text) <= width:
        return [first + text]
    most = max(0, width - _NARROWEST)
    wrapper = textwrap.TextWrapper(
        width=width,
        initial_indent=first if first.strip() else first[:most],
        subsequent_indent=later[:most],
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text) or [first]


def text_width(text: str) -> int:
    """Columns of a terminal that a text takes: two for the letters of Chinese, none for accents that combine."""
    return cell_len(text)
