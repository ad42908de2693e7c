"""A candidate: a point of a sketch together with the score that chose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.symbolic import Sketch


@dataclass(frozen=True, slots=True)
class Candidate:
    """point: one number a variable.  score: predicted log(1 / latency) up to a task's constant; nan where unknown.
    origin: what proposed it ("gradient", "random", "sampled", "stored")."""

    sketch: Sketch
    point: tuple[int, ...]
    score: float
    origin: str

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Equal for candidates that are the same schedule."""
        return self.sketch.key, self.point

    def module(self) -> Any:
        """The scheduled IRModule. Raises InvalidSchedule where TVM refuses it."""
        return self.sketch.schedule(self.point).mod
