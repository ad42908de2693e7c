"""Lay out text for a given width: tables that fold names and omit columns, paragraphs, indented lines.

Inputs: rows of text and a width in terminal columns. Without a width (None: a pipe, a file) nothing is folded or
omitted, and the text depends on its content alone. Output: lines. No text is truncated.
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

from felixlike._util.wording import printable

_GAP = 2
"""Spaces between two columns."""

_RULE = box.SIMPLE_HEAD
"""Table style: one line below the column names."""

_NARROWEST = 20
"""Smallest width for a layout, in columns. Chosen by hand. Text for narrower terminals is wider than they are."""
_WIDEST = 10_000
"""Largest width for a layout, in columns, since rows are padded to it. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Heading.
        right: Align at the right, for numbers.
        rank: Order of omission. Columns of the highest rank are omitted first if space is short; 0 is never omitted.
        least: Width in terminal columns down to which a column of names may be folded; 0: it is never folded.
    """

    name: str
    right: bool = True
    rank: int = 0
    least: int = 0


def stream_width(stream: TextIO | None = None) -> int | None:
    """Return the terminal columns of a stream (default: standard output); None if it is not a terminal.

    The environment variable COLUMNS takes precedence, for pipes and files as well.
    """
    stream = sys.stdout if stream is None else stream
    setting = os.environ.get("COLUMNS", "")
    if setting.isdecimal() and (columns := int(setting[:9])):  # the first digits are enough for `_WIDEST`
        return min(max(_NARROWEST, columns), _WIDEST)
    try:
        if stream is None or not stream.isatty():
            return None
        return max(_NARROWEST, os.get_terminal_size(stream.fileno()).columns or 80)
    except (OSError, ValueError, AttributeError):  # a closed stream, or an object without these methods
        return None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return the rows under their column names, and a last line that names omitted columns, if any.

    Args:
        columns: Columns of the table.
        rows: One string per column and row.
        width: Terminal columns; None for no limit.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    sizes = [max(map(text_width, cells)) for cells in zip([column.name for column in columns], *rows, strict=True)]
    least = [min(size, column.least) if column.least else size for column, size in zip(columns, sizes, strict=True)]
    visible = _visible_columns(columns, least, width)
    drawn = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i in visible:
        drawn.add_column(
            Text(columns[i].name), justify="right" if columns[i].right else "left", no_wrap=not columns[i].least
        )
    for row in rows:
        drawn.add_row(*(Text(row[i], overflow="fold") for i in visible))
    lines = _lines(drawn, _total(sizes) if width is None else width)
    left_out = [column.name for i, column in enumerate(columns) if i not in visible]
    if left_out:
        text = f"Omitted, since the table needs {_total(least)} columns: {', '.join(left_out)}."
        lines += paragraph(text, width)
    return lines


def _total(sizes: Iterable[int]) -> int:
    """Return the width of a table."""
    sizes = list(sizes)
    return sum(sizes) + _GAP * (len(sizes) - 1)


def _visible_columns(columns: Sequence[Column], least: Sequence[int], width: int | None) -> list[int]:
    """Return the indices of the columns that fit. least: minimum width of each column."""
    visible = list(range(len(columns)))
    while width is not None and _total(least[i] for i in visible) > width:
        worst = max(visible, key=lambda i: columns[i].rank)
        if not columns[worst].rank:
            break
        visible.remove(worst)
    return visible


def _lines(drawn: Table, width: int) -> list[str]:
    """Render a table to lines without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False, _environ={})
    with console.capture() as captured:
        console.print(drawn)
    return [line.rstrip() for line in captured.get().splitlines()]


def paragraph(text: str, width: int | None, *, indent: int = 2) -> list[str]:
    """Return a text as lines. Lines after the first are indented."""
    return _wrapped(text, width, "", " " * indent)


def entry(label: str, text: str, width: int | None, *, column: int) -> list[str]:
    """Return a label and a text that starts and continues at `column`.

    If that leaves fewer than 20 columns, the text starts below the label.
    """
    lines, space = text.splitlines() or [""], " " * column
    starts = [label.ljust(column), *[space] * (len(lines) - 1)]
    fits = width is not None and all(column + text_width(line) <= width for line in lines)
    if width is None or fits or width >= column + _NARROWEST:
        return [part for start, line in zip(starts, lines, strict=True) for part in _wrapped(line, width, start, space)]
    start = " " * (len(label) - len(label.lstrip()) + 2)
    return [label.rstrip(), *(part for line in lines for part in _wrapped(line, width, start, start))]


def indented(text: str, width: int | None, *, hanging: int) -> list[str]:
    """Wrap lines that are indented already (a program, formulas). Continuations are `hanging` columns deeper."""
    lines = []
    for line in text.splitlines():
        start = line[: len(line) - len(line.lstrip())]
        lines += _wrapped(line.lstrip(), width, start, start + " " * hanging)
    return lines


def _wrapped(text: str, width: int | None, first: str, later: str) -> list[str]:
    """Wrap one line. first, later: indents of the first and of later lines."""
    text, first = printable(text), printable(first)
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
    """Return the terminal columns of a text: two for a Chinese character, none for a combining accent."""
    return cell_len(text)
