"""The text of tensor comprehensions and positions in it.

Input: a text, offsets. Output: `Span`s, which every tree node carries, and errors that show the line and mark the
position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from felixlike.errors import TCError

_Error = TypeVar("_Error", bound=TCError)

_LONGEST = 110
"""Longest excerpt of a line in a message, in characters. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of the first character and of the character after the last."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """Return the span from the start of this one to the end of the other."""
        return Span(min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one or more definitions. name: the definition in use, for messages."""

    text: str
    name: str = ""

    def shown(self, span: Span) -> str:
        """Return a part of the text on one line."""
        return " ".join(self.text[span.start : span.end].split())

    def error(self, kind: type[_Error], span: Span, reason: str, remedy: str = "") -> _Error:
        """Return an error of type `kind` with line, column and an excerpt."""
        start = min(span.start, len(self.text))
        line = self.text.count("\n", 0, start) + 1
        first = self.text.rfind("\n", 0, start) + 1
        column = start - first + 1
        end = self.text.find("\n", first)
        whole = self.text[first : len(self.text) if end < 0 else end]
        width = max(1, min(span.end, first + len(whole)) - start)
        where = f"{self.name or 'tc'}, line {line}, column {column}"
        return kind(
            reason,
            where=where,
            remedy=remedy,
            line=line,
            column=column,
            underlined=self.text[span.start : span.end],
            excerpt=_marked(whole, column - 1, width),
        )


def _marked(line: str, at: int, width: int) -> str:
    """Return a line with marks under a part of it; a long line is cut around that part."""
    clean = "".join(c if c.isprintable() else " " for c in line)
    begin = max(0, at - _LONGEST // 2) if len(clean) > _LONGEST else 0
    part = clean[begin : begin + _LONGEST]
    marks = min(width, max(1, len(part) - (at - begin)))
    return f"    {part}\n    {' ' * (at - begin)}{'^' * marks}"
