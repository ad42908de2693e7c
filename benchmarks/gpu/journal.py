"""Record progress in a file, one line of JSON each, so that an interrupted run can be resumed.

A line with "began" records the start of a row, and a line with "row" its result. Rows that were started without a
result are repeated by the next run. If a row ends its process, the parent process records an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import keep, kept

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal. `file` has its lines."""

    file: Path

    def rows(self, part: str) -> dict[str, Row]:
        """Return the finished rows of a part by name."""
        lines = (line for line in kept(self.file) if line["part"] == part and "row" in line)
        return {line["name"]: line["row"] for line in lines}

    def begin(self, part: str, name: str, seconds: float) -> None:
        """Record the start of a row and the seconds it should take."""
        keep(self.file, {"part": part, "name": name, "began": seconds})

    def note(self, part: str, name: str, row: Row) -> None:
        """Record the result of a row."""
        keep(self.file, {"part": part, "name": name, "row": row})

    def unfinished(self, part: str) -> tuple[str, float]:
        """Return (name, expected seconds) of the last started row if it has no result, else ("", 0)."""
        lines = [line for line in kept(self.file) if line["part"] == part]
        return (lines[-1]["name"], lines[-1]["began"]) if lines and "began" in lines[-1] else ("", 0.0)

    def lines(self) -> int:
        """Return the number of lines."""
        return len(kept(self.file))
