"""Hold what a run's processes did over time, for pictures.

Inputs: the timeline of a run's clock. Output: `Activity` and its JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from felixlike._util.spent import TIMING, Spent
from felixlike.report.validation import damaged, is_number, is_whole, shown


@dataclass(frozen=True, slots=True)
class Activity:
    """What a run's processes did in each of a number of equal intervals.

    Attributes:
        width: Seconds of an interval; 0 if nothing is known.
        cores: Number of cores that the run could use.
        rows: Seconds of work in each interval, by what worked: the run's own process ("this process"), and the
            measuring processes by what they did. Several that work at a time add up.
    """

    width: float = 0.0
    cores: int = 0
    rows: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @staticmethod
    def of(spent: Spent, cores: int) -> Activity:
        """Return the activity of a run. cores: number of cores that it could use."""
        timeline = spent.timeline
        rows = {name: tuple(round(s, 4) for s in bins) for name, bins in timeline.rows.items() if any(bins)}
        return Activity(timeline.width, cores, rows)

    @property
    def idle(self) -> float:
        """Return the share of the cores' time in which they had no work of the run, 0 to 1; nan if unknown.

        A candidate that is timed has all cores for itself.
        """
        length = max(map(len, self.rows.values()), default=0)
        if not length or not self.width or not self.cores:
            return math.nan
        busy = sum(
            min(self.cores * self.width, sum(self.busy(name, place) for name in self.rows)) for place in range(length)
        )
        return max(0.0, 1 - busy / (length * self.cores * self.width))

    def busy(self, name: str, place: int) -> float:
        """Return the seconds of cores that a row takes in an interval."""
        bins = self.rows[name]
        return (bins[place] if place < len(bins) else 0.0) * (self.cores if name == TIMING else 1)

    @staticmethod
    def from_json(data: Any, place: str) -> Activity:
        """Create it from decoded JSON. place: name of the data in messages. Raise InvalidArtefact if invalid."""
        if not isinstance(data, dict) or set(data) != {"width", "cores", "rows"}:
            raise damaged(place, f"is {shown(data)}, expected width, cores and rows")
        width, cores, rows = data["width"], data["cores"], data["rows"]
        if not (is_number(width) and 0 <= width <= 1e9 and is_whole(cores) and 0 <= cores <= 1e6):
            raise damaged(place, f"has the width {shown(width)} and the cores {shown(cores)}")
        for name, bins in rows.items() if isinstance(rows, dict) else ((place, None),):
            if not isinstance(bins, list) or len(bins) > 1024 or not all(is_number(s) and 0 <= s <= 1e9 for s in bins):
                raise damaged(f"{place}.rows", f"has {shown(bins)} for {shown(name)}, expected seconds")
        return Activity(float(width), cores, {name: tuple(map(float, bins)) for name, bins in rows.items()})
