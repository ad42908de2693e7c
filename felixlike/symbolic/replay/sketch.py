"""Define sketches: a sketch is one family of schedules of a task, with variables, constraints, program and points.

Input: a task and a trace from one of its design spaces. Output: `Sketch`. A sketch that cannot be read as a symbolic
program still has variables, sampling, scheduling and points (through TVM). Only its program and formulas are missing,
and `reason` says why.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike._tvm.typing import Trace
from felixlike._util import option_checks
from felixlike._util.wording import counted, kind_of
from felixlike.codegen.annotations import TensorCores
from felixlike.errors import InvalidPoint, InvalidSchedule, UnsupportedSketch, WrongSketch
from felixlike.frontend.task import Task
from felixlike.hardware import FLOAT32, PRECISIONS
from felixlike.spaces import Postprocessor
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.program import Program
from felixlike.symbolic.program.constraints import Constraint, tile_constraints
from felixlike.symbolic.program.nest import concrete_nest, scheduled_nest
from felixlike.symbolic.program.variables import Kind, Variable, groups
from felixlike.symbolic.replay.points import Points, all_in_range, in_range, row_of, rows_of
from felixlike.symbolic.replay.sampling import Sampler
from felixlike.symbolic.replay.source_limits import SourceLimits
from felixlike.symbolic.replay.structure import Structure, read_structure
from felixlike.symbolic.replay.trace import (
    point_of,
    point_of_json,
    sketch_key,
    texts,
    trace_json,
    trace_variables,
    with_point,
)

_MOST = 100_000_000
"""Maximum number of points per call of `sample`; chosen by hand."""

_PROBES, _MORE_PROBES = 2, 8
_PROBED = 64
"""Number of random points from which the points for comparing a program with TVM are selected, if blocks moved.

`_PROBES` points are compared, or `_MORE_PROBES` if indices contain divisions. All three are chosen by hand.
"""

_PATHS = 8
"""Default for the maximum number of combinations of compute locations among the points of one call of `sample`."""


class Sketch:
    """Describe one family of schedules of a task.

    `felixlike.symbolic.sketches` creates sketches.

    Attributes:
        task: The task.
        index: The sketch's position among the sketches of its task.
        key: A digest of the trace's instructions, without decisions.
        variables: The schedule variables, one for each column of a point.
        postprocessors: The postprocessors, applied in this order.
        location_columns: The columns of the variables that decide compute locations.
        source_limits: Limits on the length of GPU source.
    """

    def __init__(self, task: Task, trace: Trace, postprocessors: Sequence[Postprocessor], index: int) -> None:
        self.task = task
        self.index = index
        self.key = sketch_key(trace)
        self.variables: tuple[Variable, ...] = trace_variables(trace, task.module)
        self._trace = trace
        self.postprocessors = tuple(postprocessors)
        self._structures: dict[tuple[int, ...], Structure | UnsupportedSketch] = {}
        self._probed: set[tuple[int, ...]] = set()
        self.source_limits = SourceLimits(self)
        self.location_columns = tuple(i for i, v in enumerate(self.variables) if v.kind is Kind.LOCATION)

    def __repr__(self) -> str:
        return f"<sketch {self.index} of {self.task.name}: {counted(len(self.variables), 'variable')}>"

    @cached_property
    def precision(self) -> str:
        """Return the name of the precision of its products: "float32", or another one on tensor cores."""
        marks = [i.inputs[1] for i in self._trace.insts if list(map(str, i.attrs)) == [TensorCores.key]]
        return (PRECISIONS[TensorCores.from_value(marks[0]).precision] if marks else FLOAT32).name

    # -- the symbolic program -----------------------------------------------------------------------------------------

    @cached_property
    def reason(self) -> str:
        """Return why the sketch has no symbolic program; empty if it has one."""
        try:
            self.structure(())
        except UnsupportedSketch as error:
            return str(error)
        return ""

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
        return bool(self.reason) and isinstance(self._structures[(-1,) * len(self.location_columns)], WrongSketch)

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
        if len(locations) > len(self.location_columns):
            raise InvalidPoint(
                f"{len(locations)} compute locations are given",
                where=repr(self),
                remedy=f"it has {len(self.location_columns)}, see Sketch.location_columns",
            )
        chosen = (*locations, *[-1] * (len(self.location_columns) - len(locations)))
        structure = self.unprobed(chosen)
        if chosen not in self._probed:
            self._probed.add(chosen)
            self._structures[chosen] = structure = self._probe(structure)
        if isinstance(structure, UnsupportedSketch):
            raise structure
        return structure

    def unprobed(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        """Return the structure for all compute locations, or the error if there is none.

        The structure may not have been compared with TVM yet.
        """
        if chosen not in self._structures:
            self._structures[chosen] = self._read(chosen)
        return self._structures[chosen]

    def _read(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        """Build the structure for all compute locations; return the error if there is none."""
        names = [postprocessor.name for postprocessor in self.postprocessors]
        try:
            return read_structure(self.task, self._trace, self.variables, names, chosen)
        except UnsupportedSketch as error:
            return error

    def _probe(self, structure: Structure | UnsupportedSketch) -> Structure | UnsupportedSketch:
        """Compare a program whose blocks have moved with TVM's loops at a few points; return an error if they differ.

        Regions under moved blocks come from TVM, but its simplifier may leave them too wide for symbolic tiles.
        """
        if isinstance(structure, UnsupportedSketch) or not structure.moved:
            return structure
        rows = self.sampler.urn(structure).draw(_PROBED, np.random.default_rng(0))
        rows[:, self.location_columns] = structure.locations
        stores = (store for store, _ in structure.program.stores())
        has_divisions = any(index.floors for store in stores for access in store.accesses for index in access.indices)
        probed_rows = np.argsort(-(rows > 1).sum(axis=1), kind="stable")[: _MORE_PROBES if has_divisions else _PROBES]
        names = [v.name for v in self.variables]
        for point in rows[probed_rows].tolist():
            try:
                tvm_nest = scheduled_nest(self.schedule(point))
            except InvalidSchedule as error:
                return UnsupportedSketch(f"TVM refuses its points: {error}", where=repr(self))
            if concrete_nest(structure.program, dict(zip(names, point, strict=True))) != tvm_nest:
                what = f"with blocks at {structure.locations} the symbolic loops are wider than TVM's"
                return UnsupportedSketch(what, where=repr(self))
        return structure

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

    @cached_property
    def sampler(self) -> Sampler:
        """Return the sampler of random points."""
        return Sampler(self)

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
        rows_by_locations: dict[tuple[int, ...], list[int]] = {}
        for row, locations in enumerate(points[:, self.location_columns].tolist()):
            rows_by_locations.setdefault(tuple(locations), []).append(row)
        return [(locations, np.array(rows)) for locations, rows in rows_by_locations.items()]

    def values(self, points: Points) -> dict[str, npt.NDArray[np.float64]]:
        """Return the columns by variable name as float64[n], for the evaluation of formulas."""
        return {v.name: points[:, i].astype(np.float64) for i, v in enumerate(self.variables)}

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
        row = self._row(point)
        schedule = self._new_schedule(1)
        try:
            with_point(self._trace, self.variables, row).apply_to_schedule(schedule, remove_postproc=True)
            replayed = point_of(schedule.trace, self.variables)
            schedule.enter_postproc()
            accepted = all(p.apply(schedule) for p in self.postprocessors)
        except _tvm.TVM_ERRORS as error:
            if not _tvm.refusal(error):
                raise
            reason = (str(error).strip().splitlines() or [""])[-1]
            raise InvalidSchedule(f"TVM refused the point {row}: {reason[:160]}", where=repr(self)) from error
        if replayed != row:
            raise InvalidSchedule(f"TVM replaced the point {row} by {replayed}", where=repr(self))
        if not accepted:
            raise InvalidSchedule(f"a postprocessor refused the point {row}", where=repr(self))
        return schedule

    def as_drawn(self) -> Any:
        """Return an unpostprocessed TVM schedule with the trace's own decisions; TVM's searches begin with it."""
        self._trace.apply_to_schedule(schedule := self._new_schedule(1), remove_postproc=True)
        return schedule

    def drawn_by_tvm(self, seed: int) -> tuple[int, ...]:
        """Return a point that TVM draws, whether postprocessors accept it or not.

        Args:
            seed: TVM's seed, at least 1.
        """
        schedule = self._new_schedule(seed)
        _tvm.Trace(self._trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        return point_of(schedule.trace, self.variables)

    def accepts(self, point: Sequence[int]) -> bool:
        """Return whether TVM accepts a point without changing it.

        Raises:
            InvalidPoint: If `point` does not hold one whole number per variable.
        """
        try:
            self.schedule(point)
        except InvalidSchedule:
            return False
        return True

    def point(self, trace: Trace) -> tuple[int, ...]:
        """Return the point of a MetaSchedule trace of this sketch: one number per variable.

        Raises:
            InvalidPoint: If `trace` is not a trace of this sketch.
        """
        if not isinstance(trace, _tvm.Trace):
            raise InvalidPoint(
                f"it is {kind_of(trace)}, not a trace", where=repr(self), remedy="give the trace of a schedule: s.trace"
            )
        point = self.traced_point(json.loads(trace_json(trace)))
        if point is None:
            raise InvalidPoint("the trace's instructions are not this sketch's", where=repr(self))
        return point

    def trace_json(self) -> str:
        """Return the sketch's trace in MetaSchedule's format: JSON of [instructions, decisions]."""
        return trace_json(self._trace)

    def traced_point(self, trace: Trace) -> tuple[int, ...] | None:
        """Return the point of a trace in MetaSchedule's JSON, as its databases store it; None for other traces.

        MetaSchedule omits instructions whose results are unused, and postprocessors' instructions may follow.
        """
        for instructions, sampling_steps in self._forms:
            following = trace[0][len(instructions) : len(instructions) + 1]
            if texts(trace[0][: len(instructions)]) == instructions and all(
                step[0] == "EnterPostproc" for step in following
            ):
                decisions = {int(index): decision for index, decision in trace[1]}
                return point_of_json(instructions, decisions, sampling_steps, self.variables)
        return None

    @cached_property
    def _forms(self) -> list[tuple[list[Any], list[int]]]:
        """Return the instructions with and without unused ones, as texts, and the positions of those that sample."""
        forms = []
        for trace in (self._trace, self._trace.simplified(True)):
            instructions = texts(json.loads(trace_json(trace))[0])
            sampling_steps = [i for i, instruction in enumerate(instructions) if instruction[0].startswith("Sample")]
            if len(sampling_steps) == len(list(groups(self.variables))):
                forms.append((instructions, sampling_steps))
        return forms

    def _new_schedule(self, seed: int) -> Any:
        """Return an empty schedule of the task's function."""
        return _tvm.Schedule(self.task.module, seed=seed, debug_mask="none", error_render_level="none")
