"""A sketch: one family of schedules of a task, with its variables, constraints, symbolic program and points.

In: a task and one of MetaSchedule's design spaces for it. Out: `Sketch`. A sketch whose trace is not yet understood
symbolically keeps its variables, sampling, scheduling and points (through TVM); only its program and formulas are
missing, and `reason` says why.
"""

from __future__ import annotations

import json
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
"""Points of one call at most."""

_PROBES, _MORE_PROBES = 2, 8
_PROBED = 64
"""Points at which a program with moved blocks is compared with TVM, more where indices are divided; and those they are
chosen from."""

_PATHS = 8
"""Default for the most combinations of compute locations among the points of one call of `sample`."""


class Sketch:
    """One family of schedules of a task."""

    def __init__(self, task: Task, trace: Trace, postprocessors: Sequence[Postprocessor], index: int) -> None:
        self.task = task
        self.index = index
        self.key = sketch_key(trace)
        self.variables: tuple[Variable, ...] = trace_variables(trace, task.module)
        self._trace = trace
        self.postprocessors = tuple(postprocessors)
        self._structures: dict[tuple[int, ...], Structure | UnsupportedSketch] = {}
        self._probed: set[tuple[int, ...]] = set()
        self.lengths = SourceLimits(self)
        self.location_columns = tuple(i for i, v in enumerate(self.variables) if v.kind is Kind.LOCATION)

    def __repr__(self) -> str:
        return f"<sketch {self.index} of {self.task.name}: {counted(len(self.variables), 'variable')}>"

    @cached_property
    def precision(self) -> str:
        """What its products are computed in, by its name: another one than float32 on tensor cores."""
        marks = [i.inputs[1] for i in self._trace.insts if list(map(str, i.attrs)) == [TensorCores.key]]
        return (PRECISIONS[TensorCores.from_value(marks[0]).precision] if marks else FLOAT32).name

    # -- the symbolic program -----------------------------------------------------------------------------------------

    @cached_property
    def reason(self) -> str:
        """Why this sketch is not understood symbolically; empty where it is."""
        try:
            self.structure(())
        except UnsupportedSketch as error:
            return str(error)
        return ""

    @property
    def understood(self) -> bool:
        """Whether there is a symbolic program, hence formulas."""
        return not self.reason

    @property
    def wrong(self) -> bool:
        """Whether TVM lowers it to programs that compute something else."""
        return bool(self.reason) and isinstance(self._structures[(-1,) * len(self.location_columns)], WrongSketch)

    @property
    def program(self) -> Program:
        """The symbolic program with every movable block at the root. Raises UnsupportedSketch."""
        return self.structure(()).program

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """What tile factors must satisfy, and what a GPU allows with every movable block at the root; the constraint on
        compute locations is each structure's `gate`."""
        return (*tile_constraints(self.variables), *(self.structure(()).limits if self.understood else ()))

    def structure(self, locations: Sequence[int]) -> Structure:
        """The program for chosen compute locations; those not given are at the root. Raises UnsupportedSketch,
        InvalidPoint for too many."""
        if len(locations) > len(self.location_columns):
            raise InvalidPoint(
                f"{len(locations)} compute locations are given",
                where=repr(self),
                remedy=f"it has {len(self.location_columns)}, see Sketch.location_columns",
            )
        chosen = (*locations, *[-1] * (len(self.location_columns) - len(locations)))
        found = self.unprobed(chosen)
        if chosen not in self._probed:
            self._probed.add(chosen)
            self._structures[chosen] = found = self._probe(found)
        if isinstance(found, UnsupportedSketch):
            raise found
        return found

    def unprobed(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        """The program for all compute locations, perhaps not yet compared with TVM; what stands against it if there is
        none."""
        if chosen not in self._structures:
            self._structures[chosen] = self._read(chosen)
        return self._structures[chosen]

    def _read(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        names = [postprocessor.name for postprocessor in self.postprocessors]
        try:
            return read_structure(self.task, self._trace, self.variables, names, chosen)
        except UnsupportedSketch as error:
            return error

    def _probe(self, structure: Structure | UnsupportedSketch) -> Structure | UnsupportedSketch:
        """Compare a program whose blocks have moved with TVM's loops at a few points; what is wrong where they differ:
        regions under moved blocks are TVM's own, but its simplifier may leave them too wide for symbolic tiles."""
        if isinstance(structure, UnsupportedSketch) or not structure.moved:
            return structure
        rows = self.sampler.urn(structure).draw(_PROBED, np.random.default_rng(0))
        rows[:, self.location_columns] = structure.locations
        stores = (store for store, _ in structure.program.stores())
        divided = any(index.floors for store in stores for access in store.accesses for index in access.indices)
        most = np.argsort(-(rows > 1).sum(axis=1), kind="stable")[: _MORE_PROBES if divided else _PROBES]
        names = [v.name for v in self.variables]
        for point in rows[most].tolist():
            try:
                theirs = scheduled_nest(self.schedule(point))
            except InvalidSchedule as error:
                return UnsupportedSketch(f"TVM refuses its points: {error}", where=repr(self))
            if concrete_nest(structure.program, dict(zip(names, point, strict=True))) != theirs:
                what = f"with blocks at {structure.locations} the symbolic loops are wider than TVM's"
                return UnsupportedSketch(what, where=repr(self))
        return structure

    # -- points -------------------------------------------------------------------------------------------------------

    def sample(self, count: int, seed: int, *, paths: int = _PATHS) -> Points:
        """int64[count, variables]: random points, all valid ones equally likely. The same seed gives the same points.

        paths: most combinations of compute locations among them; each needs a symbolic program of its own, once. They
        are drawn first, as TVM would for random tiles, and one that is drawn twice counts twice.
        Raises InvalidSchedule where no point is valid, InvalidOption for a bad count, seed or paths."""
        count = option_checks.whole(count, "count", most=_MOST, where="Sketch.sample")
        seed = option_checks.seed(seed, where="Sketch.sample")
        paths = option_checks.whole(paths, "paths", least=1, where="Sketch.sample")
        return self.sampler.sample(count, np.random.default_rng(seed), paths=paths)

    @cached_property
    def sampler(self) -> Sampler:
        """Where random points come from."""
        return Sampler(self)

    def valid(self, points: Points) -> npt.NDArray[np.bool_]:
        """bool[n]: which of int64[n, variables] satisfy every constraint, and have source that is short enough
        (`SourceLimits`). Raises InvalidPoint for a wrong width."""
        points = self.checked(points)
        good = all_in_range(points, self.variables)
        good[good] = self.lengths.short(points[good])
        if self.understood:
            for locations, rows in self.by_structure(points):
                good[rows] &= self._placed(points[rows], locations)
        return good

    def in_range(self, point: Sequence[int]) -> bool:
        """Whether each number is one that its variable can have, and tiles make up their loops; compute locations are
        left to TVM."""
        try:
            return in_range(self._row(point), self.variables)
        except InvalidPoint:
            return False

    def by_structure(self, points: Points) -> list[tuple[tuple[int, ...], npt.NDArray[np.int64]]]:
        """(compute locations, rows that chose them), in the order of first appearance."""
        found: dict[tuple[int, ...], list[int]] = {}
        for row, locations in enumerate(points[:, self.location_columns].tolist()):
            found.setdefault(tuple(locations), []).append(row)
        return [(locations, np.array(rows)) for locations, rows in found.items()]

    def values(self, points: Points) -> dict[str, npt.NDArray[np.float64]]:
        """The columns by variable name, for the evaluation of formulas."""
        return {v.name: points[:, i].astype(np.float64) for i, v in enumerate(self.variables)}

    def checked(self, points: npt.ArrayLike) -> Points:
        """The points as int64[n, variables], valid or not. Raises InvalidPoint for another shape, and for what are no
        whole numbers."""
        return rows_of(points, self.variables, where=repr(self))

    def _row(self, point: npt.ArrayLike) -> tuple[int, ...]:
        return row_of(point, self.variables, where=repr(self))

    def _placed(self, points: Points, locations: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """bool[n]: whether TVM would leave the blocks where `locations` puts them."""
        try:
            gate = self.structure(locations).gate
        except UnsupportedSketch:
            return np.zeros(len(points), dtype=bool)
        if gate.is_const:
            return np.full(len(points), bool(gate.value))
        return Graph([gate]).evaluate(self.values(points), len(points))[:, 0] > 0.5

    # -- schedules ----------------------------------------------------------------------------------------------------

    def schedule(self, point: Sequence[int]) -> Any:
        """The TVM schedule of a point, postprocessed. Raises InvalidSchedule where TVM refuses or moves it,
        InvalidPoint for what is no point of this sketch at all."""
        wanted = self._row(point)
        schedule = self._new_schedule(1)
        try:
            with_point(self._trace, self.variables, wanted).apply_to_schedule(schedule, remove_postproc=True)
            found = point_of(schedule.trace, self.variables)
            schedule.enter_postproc()
            accepted = all(p.apply(schedule) for p in self.postprocessors)
        except _tvm.TVM_ERRORS as error:
            if not _tvm.refusal(error):
                raise
            reason = (str(error).strip().splitlines() or [""])[-1]
            raise InvalidSchedule(f"TVM refused the point {wanted}: {reason[:160]}", where=repr(self)) from error
        if found != wanted:
            raise InvalidSchedule(f"TVM replaced the point {wanted} by {found}", where=repr(self))
        if not accepted:
            raise InvalidSchedule(f"a postprocessor refused the point {wanted}", where=repr(self))
        return schedule

    def as_drawn(self) -> Any:
        """A TVM schedule with the trace's own decisions, without postprocessing: what TVM's searches begin with."""
        self._trace.apply_to_schedule(schedule := self._new_schedule(1), remove_postproc=True)
        return schedule

    def drawn_by_tvm(self, seed: int) -> tuple[int, ...]:
        """What TVM draws for every variable, whether postprocessors accept it or not.  seed: of TVM's, from 1."""
        schedule = self._new_schedule(seed)
        _tvm.Trace(self._trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        return point_of(schedule.trace, self.variables)

    def accepts(self, point: Sequence[int]) -> bool:
        """Whether TVM takes a point as it is. Raises InvalidPoint as `schedule` does."""
        try:
            self.schedule(point)
        except InvalidSchedule:
            return False
        return True

    def point(self, trace: Trace) -> tuple[int, ...]:
        """The point of a MetaSchedule trace of this sketch: one number a variable. Raises InvalidPoint for others."""
        if not isinstance(trace, _tvm.Trace):
            raise InvalidPoint(
                f"it is {kind_of(trace)}, not a trace", where=repr(self), remedy="give the trace of a schedule: s.trace"
            )
        found = self.traced_point(json.loads(trace_json(trace)))
        if found is None:
            raise InvalidPoint("the trace's instructions are not this sketch's", where=repr(self))
        return found

    def trace_json(self) -> str:
        """The sketch's trace as MetaSchedule writes it: JSON of [instructions, decisions]."""
        return trace_json(self._trace)

    def traced_point(self, trace: Trace) -> tuple[int, ...] | None:
        """The point of a trace in MetaSchedule's JSON, as its databases hold them; None if it is not of this sketch.

        MetaSchedule leaves out instructions whose results nothing uses, and postprocessors' steps may follow."""
        for own, chosen in self._forms:
            following = trace[0][len(own) : len(own) + 1]
            if texts(trace[0][: len(own)]) == own and all(step[0] == "EnterPostproc" for step in following):
                decisions = {int(index): decision for index, decision in trace[1]}
                return point_of_json(own, decisions, chosen, self.variables)
        return None

    @cached_property
    def _forms(self) -> list[tuple[list[Any], list[int]]]:
        """The instructions in full and without unused ones, as texts, with the places of those that decide."""
        forms = []
        for trace in (self._trace, self._trace.simplified(True)):
            own = texts(json.loads(trace_json(trace))[0])
            chosen = [i for i, instruction in enumerate(own) if instruction[0].startswith("Sample")]
            if len(chosen) == len(list(groups(self.variables))):
                forms.append((own, chosen))
        return forms

    def _new_schedule(self, seed: int) -> Any:
        return _tvm.Schedule(self.task.module, seed=seed, debug_mask="none", error_render_level="none")
