"""Define sketches: a sketch is one family of schedules of a task, with variables, constraints, program and points.

Input: a task and a trace from one of its design spaces. Output: `Sketch`. A sketch that cannot be read as a symbolic
program still has variables, sampling, scheduling and points (through TVM). Only its program and formulas are missing,
and `reason` says why.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike._tvm.typing import Trace
from felixlike._util import option_checks
from felixlike._util.wording import counted, kind_of
from felixlike.codegen.annotations import LoopAnnotation, Narrow, Pairs, TensorCores
from felixlike.errors import InvalidPoint, UnsupportedSketch
from felixlike.frontend.task import Task
from felixlike.hardware import FLOAT32, PRECISIONS
from felixlike.spaces import Postprocessor
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.program import Program
from felixlike.symbolic.program.constraints import Constraint, tile_constraints
from felixlike.symbolic.program.variables import Variable
from felixlike.symbolic.replay.points import Points, all_in_range, by_columns, in_range, row_of, rows_of, values_of
from felixlike.symbolic.replay.sampling import Sampler
from felixlike.symbolic.replay.scheduler import Scheduler
from felixlike.symbolic.replay.source_limits import SourceLimits
from felixlike.symbolic.replay.structure import Structure
from felixlike.symbolic.replay.structure_cache import StructureCache
from felixlike.symbolic.replay.trace import sketch_key, trace_json, trace_variables
from felixlike.symbolic.replay.trace_codec import TraceCodec

_MOST = 100_000_000
"""Maximum number of points per call of `sample`; chosen by hand."""

_PATHS = 8
"""Default for the maximum number of combinations of compute locations among the points of one call of `sample`."""


@dataclass(frozen=True, eq=False, repr=False)
class Sketch:
    """Describe one family of schedules of a task.

    `felixlike.symbolic.sketches` creates sketches.

    Attributes:
        task: The task.
        trace: The trace of TVM's schedule, without fixed decisions.
        postprocessors: The postprocessors, applied in this order.
        index: The sketch's position among the sketches of its task.
        key: A digest of the trace's instructions, without decisions.
        variables: The schedule variables, one for each column of a point.
        location_columns: The columns of the variables that decide compute locations.
    """

    task: Task
    trace: Trace
    postprocessors: tuple[Postprocessor, ...]
    index: int
    key: str = ""
    variables: tuple[Variable, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or sketch_key(self.trace))
        object.__setattr__(self, "variables", trace_variables(self.trace, self.task.module))

    def __repr__(self) -> str:
        return f"<sketch {self.index} of {self.task.name}: {counted(len(self.variables), 'variable')}>"

    @property
    def location_columns(self) -> tuple[int, ...]:
        """Return the columns of the variables that decide compute locations."""
        return self.structures.columns

    @cached_property
    def precision(self) -> str:
        """Return the name of the precision of its products: "float32", or that of the factors that are rounded."""
        values = [value for mark in (TensorCores, Narrow, Pairs) for value in self._annotations(mark)]
        return (PRECISIONS[int(values[0])] if values else FLOAT32).name

    @cached_property
    def rounded(self) -> str:
        """Return what is rounded before products: "factors", "weights", or "" for nothing."""
        rounds = {"factors": (TensorCores, Pairs), "weights": (Narrow,)}
        return next((w for w, marks in rounds.items() if any(any(self._annotations(mark)) for mark in marks)), "")

    def _annotations(self, mark: type[LoopAnnotation]) -> list[Any]:
        """Return the values of an annotation in the trace."""
        return [i.inputs[1] for i in self.trace.insts if list(map(str, i.attrs)) == [mark.key]]

    # -- the parts of a sketch ----------------------------------------------------------------------------------------

    @cached_property
    def scheduler(self) -> Scheduler:
        """Return what makes TVM's schedules."""
        return Scheduler(self.task, self.trace, self.variables, self.postprocessors, repr(self))

    @cached_property
    def structures(self) -> StructureCache:
        """Return the symbolic programs, one per combination of compute locations."""
        return StructureCache(self.scheduler)

    @cached_property
    def source_limits(self) -> SourceLimits:
        """Return the limits on the length of GPU source."""
        return SourceLimits(self.structures)

    @cached_property
    def sampler(self) -> Sampler:
        """Return the sampler of random points."""
        return Sampler(self.structures, self.source_limits)

    @cached_property
    def codec(self) -> TraceCodec:
        """Return what reads points from traces."""
        return TraceCodec(self.trace, self.variables)

    # -- the symbolic program -----------------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Return why the sketch has no symbolic program; empty if it has one."""
        return self.structures.reason

    @property
    def is_symbolic(self) -> bool:
        """Return whether the sketch has a symbolic program, and therefore formulas."""
        return not self.reason

    @property
    def understood(self) -> bool:
        """Return `is_symbolic`, with a DeprecationWarning."""
        warnings.warn("Sketch.understood is now Sketch.is_symbolic", DeprecationWarning, stacklevel=2)
        return self.is_symbolic

    @property
    def wrong(self) -> bool:
        """Return whether TVM lowers the sketch to programs that compute wrong results."""
        return self.structures.is_wrong

    @property
    def program(self) -> Program:
        """Return the symbolic program with every movable block at the root.

        Raises:
            UnsupportedSketch: If the sketch has no symbolic program.
        """
        return self.structure(()).program

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """Return the constraints on tile factors, and the device's limits with every movable block at the root.

        The constraint on compute locations is the `gate` of each structure.
        """
        return (*tile_constraints(self.variables), *(self.structure(()).limits if self.is_symbolic else ()))

    def structure(self, locations: Sequence[int]) -> Structure:
        """Return the structure for chosen compute locations.

        Args:
            locations: One number per location variable. Missing ones are at the root.

        Raises:
            UnsupportedSketch: If there is no symbolic program for these locations.
            InvalidPoint: If there are more locations than location variables.
        """
        return self.structures.at(locations)

    # -- points -------------------------------------------------------------------------------------------------------

    def sample(self, count: int, seed: int, *, paths: int = _PATHS) -> Points:
        """Draw random valid points, all equally likely. The same seed gives the same points.

        Compute locations are drawn first, as TVM would draw them for random tiles. A combination that is drawn twice
        counts twice.

        Args:
            count: The number of points.
            seed: An integer in [0, 2**64).
            paths: The maximum number of combinations of compute locations. Each needs its own symbolic program, built
                once.

        Returns:
            int64[count, variables].

        Raises:
            InvalidSchedule: If no point is valid.
            InvalidOption: If `count`, `seed` or `paths` is invalid.
        """
        count = option_checks.whole(count, "count", most=_MOST, where="Sketch.sample")
        seed = option_checks.seed(seed, where="Sketch.sample")
        paths = option_checks.whole(paths, "paths", least=1, where="Sketch.sample")
        return self.sampler.sample(count, np.random.default_rng(seed), paths=paths)

    def valid(self, points: Points) -> npt.NDArray[np.bool_]:
        """Return which points satisfy every constraint and have short enough source (`SourceLimits`).

        Args:
            points: int64[n, variables].

        Returns:
            bool[n].

        Raises:
            InvalidPoint: If `points` has another shape.
        """
        points = self.checked(points)
        good = all_in_range(points, self.variables)
        good[good] = self.source_limits.short(points[good])
        if self.is_symbolic:
            for locations, rows in self.by_structure(points):
                good[rows] &= self._placed(points[rows], locations)
        return good

    def in_range(self, point: Sequence[int]) -> bool:
        """Return whether each number is among its variable's choices and tile factors multiply to their loops' extents.

        Compute locations are not checked; TVM checks them.
        """
        try:
            return in_range(self._row(point), self.variables)
        except InvalidPoint:
            return False

    def by_structure(self, points: Points) -> list[tuple[tuple[int, ...], npt.NDArray[np.int64]]]:
        """Return (compute locations, rows with these locations), in the order of first appearance."""
        return by_columns(points, self.location_columns)

    def values(self, points: Points) -> dict[str, npt.NDArray[np.float64]]:
        """Return the columns by variable name as float64[n], for the evaluation of formulas."""
        return values_of(points, self.variables)

    def checked(self, points: npt.ArrayLike) -> Points:
        """Return the points as int64[n, variables], valid or not.

        Raises:
            InvalidPoint: If `points` has another shape or holds values that are not whole numbers.
        """
        return rows_of(points, self.variables, where=repr(self))

    def _row(self, point: npt.ArrayLike) -> tuple[int, ...]:
        """Return a point as a tuple of integers."""
        return row_of(point, self.variables, where=repr(self))

    def _placed(self, points: Points, locations: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """Return which points have the blocks where `locations` puts them: bool[n]. TVM moves or refuses the others."""
        try:
            gate = self.structure(locations).gate
        except UnsupportedSketch:
            return np.zeros(len(points), dtype=bool)
        if gate.is_const:
            return np.full(len(points), bool(gate.value))
        return Graph([gate]).evaluate(self.values(points), len(points))[:, 0] > 0.5

    # -- schedules ----------------------------------------------------------------------------------------------------

    def schedule(self, point: Sequence[int]) -> Any:
        """Return the postprocessed TVM schedule of a point.

        Args:
            point: One integer per variable.

        Raises:
            InvalidSchedule: If TVM refuses the point, or replaces it by another one.
            InvalidPoint: If `point` does not hold one whole number per variable.
        """
        return self.scheduler.schedule(self._row(point))

    def accepts(self, point: Sequence[int]) -> bool:
        """Return whether TVM accepts a point without changing it.

        Raises:
            InvalidPoint: If `point` does not hold one whole number per variable.
        """
        return self.scheduler.accepts(self._row(point))

    def point(self, trace: Trace) -> tuple[int, ...]:
        """Return the point of a MetaSchedule trace of this sketch: one number per variable.

        Raises:
            InvalidPoint: If `trace` is not a trace of this sketch.
        """
        if not isinstance(trace, _tvm.Trace):
            raise InvalidPoint(
                f"it is {kind_of(trace)}, not a trace", where=repr(self), remedy="give the trace of a schedule: s.trace"
            )
        point = self.codec.point(json.loads(trace_json(trace)))
        if point is None:
            raise InvalidPoint("the trace's instructions are not this sketch's", where=repr(self))
        return point

    def trace_json(self) -> str:
        """Return the sketch's trace in MetaSchedule's format: JSON of [instructions, decisions]."""
        return trace_json(self.trace)
