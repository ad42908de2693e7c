"""Define the search space of a task: its sketches, with formulas for the symbolic ones.

Input: a task. Output: `Space`. Formulas and smooth formulas are built on first use.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from felixlike._util.deadline import Deadline
from felixlike._util.spent import on
from felixlike.errors import UnsupportedSketch
from felixlike.features import FeatureArray, Formulas, formulas
from felixlike.frontend.task import Task
from felixlike.search.candidate import Candidate
from felixlike.smooth import Relaxed, relax
from felixlike.symbolic import Kind, Points, Sketch, SpaceName, sketches
from felixlike.symbolic.expr.factors import factorisations
from felixlike.symbolic.program.variables import groups


class Space:
    """The sketches of one task.

    Args:
        task: The task.
        space: Name of the design space, see `SpaceName`.
        on_error: Called with unexpected exceptions of rules and sketches. If a rule of the space fails, MetaSchedule's
            sketches replace all of the space; a failing sketch is skipped. With None, exceptions are raised.
        deadline: The run's deadline. Strategies check it before they build formulas, which takes 0.1 s or more per
            structure. None sets no deadline.

    Attributes:
        sketches: All usable sketches.
        symbolic: The symbolic sketches.
        non_symbolic: The non-symbolic sketches, which are tuned by sampling.
    """

    def __init__(
        self,
        task: Task,
        space: str = SpaceName.BEST,
        *,
        on_error: Callable[[Exception], None] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.task = task
        self.deadline = Deadline() if deadline is None else deadline
        self._on_error = on_error
        self._exact = True
        self.sketches: tuple[Sketch, ...] = self._usable(space)
        self.symbolic = tuple(s for s in self.sketches if s.is_symbolic)
        self.non_symbolic = tuple(s for s in self.sketches if not s.is_symbolic)
        self._formulas: dict[str, Formulas] = {}
        self._relaxed: dict[str, Relaxed] = {}

    def formulas(self, sketch: Sketch) -> Formulas:
        """Return the exact formulas of a symbolic sketch."""
        if sketch.key not in self._formulas:
            self._formulas[sketch.key] = formulas(sketch)
        return self._formulas[sketch.key]

    def relaxed(self, sketch: Sketch) -> Relaxed:
        """Return the smooth formulas of a symbolic sketch."""
        if sketch.key not in self._relaxed:
            self._relaxed[sketch.key] = relax(self.formulas(sketch), dtype=torch.float32)
        return self._relaxed[sketch.key]

    def features(self, sketch: Sketch, points: Points) -> FeatureArray | None:
        """Return the exact features of points.

        Args:
            sketch: The sketch.
            points: int64[n, variables].

        Returns:
            float64[n, stores, columns]; None if the sketch, or the structure of a point, is not symbolic.
        """
        if not self._exact or not sketch.is_symbolic:
            return None
        try:
            return self.formulas(sketch).evaluate(np.asarray(points, dtype=np.int64))
        except UnsupportedSketch:
            return None

    def size(self) -> float:
        """Return the number of points; inf if it depends on compute locations or is too large to enumerate."""
        return float(sum(_size(sketch) for sketch in self.sketches))

    def in_precision(self, name: str) -> Space:
        """Return the space of the sketches whose products have a precision."""
        return self.part(lambda sketch: sketch.precision == name)

    def part(self, has: Callable[[Sketch], bool]) -> Space:
        """Return the space of the sketches for which `has` is true, with the formulas that are known here."""
        part = copy.copy(self)
        part.sketches, part.symbolic, part.non_symbolic = (
            tuple(filter(has, sketches)) for sketches in (self.sketches, self.symbolic, self.non_symbolic)
        )
        return part

    def by_key(self, key: str) -> Sketch | None:
        """Return the sketch with this key, from this space or, as stores may hold, another one; None if unknown."""
        sketch = next((s for s in self.sketches if s.key == key), None)
        return sketch or next((s for s in self._known_elsewhere if s.key == key), None)

    def stored(self, key: str, point: tuple[int, ...]) -> Candidate | None:
        """Return the candidate of a stored record; None if the task no longer has its sketch."""
        sketch = self.by_key(key)
        if sketch is None or len(point) != len(sketch.variables):
            return None
        return Candidate(sketch, point, float("nan"), "stored")

    @cached_property
    def _known_elsewhere(self) -> tuple[Sketch, ...]:
        """Return the usable sketches of all design spaces."""
        return self._usable(SpaceName.ALL)

    def degrade(self) -> bool:
        """Drop all formulas after an internal error, so that sketches are sampled; drop all sketches at the next call.

        Return whether any sketches are left."""
        self.non_symbolic = self.sketches = self.sketches if self._exact else ()
        self.symbolic, self._exact = (), False
        return bool(self.sketches)

    def _usable(self, space: str) -> tuple[Sketch, ...]:
        """Return the usable sketches of a design space."""
        with on("sketches"):
            return tuple(sketch for sketch in self._all_sketches(space) if self._is_usable(sketch))

    def _all_sketches(self, space: str) -> tuple[Sketch, ...]:
        """Return the sketches of a design space, or of MetaSchedule's if a rule fails."""
        for name in dict.fromkeys((space, SpaceName.DEFAULT)):
            try:
                return sketches(self.task, space=name)
            except Exception as error:
                if self._on_error is None:
                    raise
                self._on_error(error)
        return ()

    def _is_usable(self, sketch: Sketch) -> bool:
        """Return whether TVM lowers the sketch to the task's computation."""
        try:
            return not sketch.wrong
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)
            return False


def _size(sketch: Sketch) -> float:
    """Return the number of points of a sketch; inf if unknown."""
    count = 1.0
    for _, columns in groups(sketch.variables):
        first, last = sketch.variables[columns[0]], sketch.variables[columns[-1]]
        match first.kind:
            case Kind.TILE:
                table = factorisations(first.extent, len(columns), last.choices[-1])
                count *= math.inf if table is None else len(table)
            case Kind.UNROLL | Kind.FETCH | Kind.THREADS:
                count *= len(first.choices)
            case Kind.LOCATION:
                return math.inf
    return count
