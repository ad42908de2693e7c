"""What has been done, a line of JSON each, so that a run that was stopped goes on where it was.

A line with "began" says that something was begun; one with "row" what came of it. What was begun and has no row when a
run starts is done again; what ends its process is noted as an error by whoever started that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import keep, kept

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Journal:
    """file: of the lines."""

    file: Path

    def rows(self, part: str) -> dict[str, Row]:
        """What is done of a part, by name."""
        lines = (line for line in kept(self.file) if line["part"] == part and "row" in line)
        return {line["name"]: line["row"] for line in lines}

    def begin(self, part: str, name: str, seconds: float) -> None:
        """Note that something begins, and how long it should take."""
        keep(self.file, {"part": part, "name": name, "began": seconds})

    def note(self, part: str, name: str, row: Row) -> None:
        """Note what came of it."""
        keep(self.file, {"part": part, "name": name, "row": row})

    def unfinished(self, part: str) -> tuple[str, float]:
        """(name, how long it should take) of what was begun last, if nothing came of it; else ("", 0)."""
        lines = [line for line in kept(self.file) if line["part"] == part]
        return (lines[-1]["name"], lines[-1]["began"]) if lines and "began" in lines[-1] else ("", 0.0)

    def lines(self) -> int:
        """How many there are."""
        return len(kept(self.file))
