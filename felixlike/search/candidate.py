"""Define `Candidate`, a point of a sketch with the score that selected it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.hardware import FLOAT32
from felixlike.symbolic import Sketch


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule that a search proposes to measure.

    Attributes:
        sketch: The sketch that the point belongs to.
        point: One number per variable of the sketch.
        score: Predicted log(1 / latency), up to a constant of the task; nan if unknown.
        origin: What proposed it, such as "gradient", "random", "sampled" or "stored".
    """

    sketch: Sketch
    point: tuple[int, ...]
    score: float
    origin: str

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Return the sketch's key and the point, which are equal for candidates with the same schedule."""
        return self.sketch.key, self.point

    @property
    def is_exact(self) -> bool:
        """Return whether the schedule rounds no factors."""
        return self.sketch.precision == FLOAT32.name

    def module(self) -> Any:
        """Return the scheduled IRModule.

        Raises:
            InvalidSchedule: TVM rejects the schedule.
        """
        return self.sketch.schedule(self.point).mod
