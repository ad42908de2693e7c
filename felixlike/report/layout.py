"""Text laid out for the width there is: tables that fold names and leave out columns, paragraphs, indented lines.

In: rows of text and a width in columns of a terminal; None where there is none (a pipe, a file): then nothing is folded
or left out, and the text depends on what it says alone. Out: lines. Nothing is cut off.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

_GAP = 2
"""Between two columns."""

_LEAST = 8
"""A name is folded no further, however narrow the terminal."""

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
    cells = [[column.name for column in columns], *rows]
    sizes = [max(text_width(row[i]) for row in cells) for i in range(len(columns))]
    kept = _kept(columns, sizes, width)
    shown = _shrunk(columns, sizes, kept, width)
    head, *body = [_row(columns, row, kept, shown) for row in cells]
    lines = [*head, "─" * (sum(shown) + _GAP * (len(kept) - 1)), *(line for row in body for line in row)]
    left_out = [column.name for i, column in enumerate(columns) if i not in kept]
    if left_out:
        needed = sum(map(_least, columns, sizes)) + _GAP * (len(columns) - 1)
        lines += paragraph(f"Left out for want of room (of {needed} columns): {', '.join(left_out)}.", width)
    return lines


def _least(column: Column, size: int) -> int:
    """The width a column must have.  size: that of its widest cell."""
    return min(size, column.least) if column.least else size


def _kept(columns: Sequence[Column], sizes: Sequence[int], width: int | None) -> list[int]:
    """Indices of the columns that there is room for."""
    kept = list(range(len(columns)))
    while width is not None:
        if sum(_least(columns[i], sizes[i]) for i in kept) + _GAP * (len(kept) - 1) <= width:
            break
        worst = max(kept, key=lambda i: columns[i].rank)
        if not columns[worst].rank:
            break
        kept.remove(worst)
    return kept


def _shrunk(columns: Sequence[Column], sizes: Sequence[int], kept: Sequence[int], width: int | None) -> list[int]:
    """Widths of the columns that are kept: names give way, the widest first."""
    shown = [sizes[i] for i in kept]
    names = [place for place, i in enumerate(kept) if columns[i].least]
    while width is not None and sum(shown) + _GAP * (len(kept) - 1) > width:
        widest = max(names, key=lambda place: shown[place], default=None)
        if widest is None or shown[widest] <= _LEAST:
            break
        shown[widest] -= 1
    return shown


def _row(columns: Sequence[Column], row: Sequence[str], kept: Sequence[int], shown: Sequence[int]) -> list[str]:
    """One row as lines."""
    folded = [fold(row[i], size) for i, size in zip(kept, shown, strict=True)]
    lines = []
    for number in range(max(map(len, folded))):
        parts = []
        for i, cell, size in zip(kept, folded, shown, strict=True):
            text = cell[number] if number < len(cell) else ""
            space = " " * (size - text_width(text))
            parts.append(space + text if columns[i].right else text + space)
        lines.append((" " * _GAP).join(parts).rstrip())
    return lines


def fold(text: str, width: int) -> list[str]:
    """A name on several lines where it is too wide for one: broken behind _, . and the like, spaces, or anywhere."""
    lines, rest = [], text
    while text_width(rest) > width:
        end = _fitting(rest, width)
        breaks = [m.end() for m in re.finditer(r"[_\-./:,\s]+", rest[:end])]
        end = next((b for b in reversed(breaks) if b > end // 3), end)
        lines.append(rest[:end].rstrip())
        rest = rest[end:]
    return [*lines, rest]


def _fitting(text: str, width: int) -> int:
    """How many characters of a text have room; at least one."""
    end = 1
    while end < len(text) and text_width(text[: end + 1]) <= width:
        end += 1
    return end


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
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)
