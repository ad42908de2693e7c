"""The text of tensor comprehensions and places in it.

In: a text, offsets. Out: `Span`s that every node of the tree carries, and errors that show the line and mark the part
that is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from felixlike.errors import TCError

_Error = TypeVar("_Error", bound=TCError)

_LONGEST = 110
"""Characters of a line that are shown; of longer ones, what is around the place."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of the first character and of the one after the last."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """From the beginning of this to the end of the other."""
        return Span(min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one or more definitions.  name: of the one that is meant, for messages."""

    text: str
    name: str = ""

    def shown(self, span: Span) -> str:
        """A part of the text, on one line."""
        return " ".join(self.text[span.start : span.end].split())

    def error(self, kind: type[_Error], span: Span, reason: str, remedy: str = "") -> _Error:
        """An error of a kind about a place."""
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
    """A line and marks under a part of it; only what is around that part of a long line."""
    clean = "".join(c if c.isprintable() else " " for c in line)
    begin = max(0, at - _LONGEST // 2) if len(clean) > _LONGEST else 0
    part = clean[begin : begin + _LONGEST]
    marks = min(width, max(1, len(part) - (at - begin)))
    return f"    {part}\n    {' ' * (at - begin)}{'^' * marks}"
