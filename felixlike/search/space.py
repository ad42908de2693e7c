"""What a search may choose from: a task's sketches, with the formulas of those that are understood.

In: a task. Out: `Space`. Formulas and their smooth forms are made when first used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from felixlike._util.deadline import Deadline
from felixlike.errors import UnsupportedSketch
from felixlike.features import FeatureArray, Formulas, formulas
from felixlike.frontend.task import Task
from felixlike.search.candidate import Candidate
from felixlike.smooth import Relaxed, relax
from felixlike.symbolic import Kind, Points, Sketch, SpaceName, sketches
from felixlike.symbolic.expr.factors import factorisations
from felixlike.symbolic.program.variables import groups


class Space:
    """The sketches of one task.  space: where they come from, see `SpaceName`.

    on_error: is given what a rule of ours or a sketch raises that should not; MetaSchedule's sketches then stand in for
    those of our rules, and such a sketch is left out.  None: it is raised.  deadline: of the run; strategies ask it
    before they make formulas, which takes a tenth of a second or more for each structure."""

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
        self.understood = tuple(s for s in self.sketches if s.understood)
        self.opaque = tuple(s for s in self.sketches if not s.understood)
        """Sketches that are tuned by sampling."""
        self._formulas: dict[str, Formulas] = {}
        self._relaxed: dict[str, Relaxed] = {}

    def formulas(self, sketch: Sketch) -> Formulas:
        """The exact formulas of an understood sketch."""
        if sketch.key not in self._formulas:
            self._formulas[sketch.key] = formulas(sketch)
        return self._formulas[sketch.key]

    def relaxed(self, sketch: Sketch) -> Relaxed:
        """The smooth formulas of an understood sketch."""
        if sketch.key not in self._relaxed:
            self._relaxed[sketch.key] = relax(self.formulas(sketch), dtype=torch.float32)
        return self._relaxed[sketch.key]

    def features(self, sketch: Sketch, points: Points) -> FeatureArray | None:
        """Exact features float64[n, stores, columns]; None for a sketch (or a place) that is not understood."""
        if not self._exact or not sketch.understood:
            return None
        try:
            return self.formulas(sketch).evaluate(np.asarray(points, dtype=np.int64))
        except UnsupportedSketch:
            return None

    def size(self) -> float:
        """How many points there are; inf where compute locations make that number depend on the tiles."""
        return float(sum(_size(sketch) for sketch in self.sketches))

    def by_key(self, key: str) -> Sketch | None:
        """The sketch with this key: one that is searched, or of another space, as stores remember them."""
        found = next((s for s in self.sketches if s.key == key), None)
        return found or next((s for s in self._known_elsewhere if s.key == key), None)

    def stored(self, key: str, point: tuple[int, ...]) -> Candidate | None:
        """The candidate that a store tells of; None if its sketch is none of the task's any more."""
        sketch = self.by_key(key)
        if sketch is None or len(point) != len(sketch.variables):
            return None
        return Candidate(sketch, point, float("nan"), "stored")

    @cached_property
    def _known_elsewhere(self) -> tuple[Sketch, ...]:
        return self._usable(SpaceName.ALL)

    def degrade(self) -> bool:
        """Do without what may just have failed by a mistake of ours: without formulas, so that all sketches are
        sampled; once that is so, without sketches. Whether any are left."""
        self.opaque = self.sketches = self.sketches if self._exact else ()
        self.understood, self._exact = (), False
        return bool(self.sketches)

    def _usable(self, space: str) -> tuple[Sketch, ...]:
        return tuple(sketch for sketch in self._found(space) if self._is_usable(sketch))

    def _found(self, space: str) -> tuple[Sketch, ...]:
        for name in dict.fromkeys((space, SpaceName.DEFAULT)):
            try:
                return sketches(self.task, space=name)
            except Exception as error:
                if self._on_error is None:
                    raise
                self._on_error(error)
        return ()

    def _is_usable(self, sketch: Sketch) -> bool:
        try:
            return not sketch.wrong
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)
            return False


def _size(sketch: Sketch) -> float:
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
