"""A sketch: one family of schedules of a task, with its variables, constraints, symbolic program and points.

In: a task and one of MetaSchedule's design spaces for it. Out: `Sketch`. A sketch whose trace is not yet understood
symbolically keeps its variables, sampling, scheduling and points (through TVM); only its program and formulas are
missing, and `reason` says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import options, tvmlib
from felixlike.algebra.comparison import at_most
from felixlike.algebra.evaluation import Graph
from felixlike.algebra.expression import Expr, const
from felixlike.errors import InvalidPoint, InvalidSchedule, UnsupportedSketch, WrongSketch
from felixlike.frontend.task import Task
from felixlike.spaces import Postprocessor
from felixlike.symbolic.program import Program
from felixlike.symbolic.program.constraints import Constraint, tile_constraints
from felixlike.symbolic.program.nest import concrete_nest, scheduled_nest
from felixlike.symbolic.program.urn import Urn
from felixlike.symbolic.program.variables import Kind, Variable, groups
from felixlike.symbolic.replay.postprocessors import modelled, refusals
from felixlike.symbolic.replay.primitives.location import Location
from felixlike.symbolic.replay.read import read_program
from felixlike.symbolic.replay.replay import Replay
from felixlike.symbolic.replay.trace import (
    point_of,
    point_of_json,
    sketch_key,
    texts,
    trace_json,
    trace_variables,
    with_point,
)
from felixlike.tvmlib.typing import Trace
from felixlike.words import counted, kind_of, shown

Points = npt.NDArray[np.int64]

_MOST = 100_000_000
"""Points of one call at most."""

_BATCH = 100_000
"""Most points that are drawn at once."""

_HOPELESS = 3_000_000
"""Random points without a single valid one after which sampling gives up."""

_PROBES, _MORE_PROBES = 2, 8
_PROBED = 64
"""Points at which a program with moved blocks is compared with TVM, more where indices are divided; and those they are
chosen from."""

_ATTEMPTS = 64
"""Draws from a sketch that is not understood before one that TVM refuses is given."""

_PATHS = 8
"""Default for the most combinations of compute locations among the points of one call of `sample`."""


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The program for one choice of compute locations.

    locations: the choice, one number for each location variable.  offered: what each of them could have chosen.
    limits: what a kernel may ask of a GPU, or of vector registers.  gate: for which tiles TVM accepts the choice as it
    is (1) instead of moving or refusing it (0)."""

    locations: tuple[int, ...]
    program: Program
    offered: tuple[Location, ...]
    limits: tuple[Constraint, ...]
    gate: Expr

    @property
    def moved(self) -> bool:
        """Whether blocks have moved into symbolic loops: by choice, or in a trace that says how its loops are run."""
        told = any(loop.kind for _, path in self.program.stores() for loop in path)
        return told or any(place != -1 for place in self.locations)


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
        self._urns: dict[tuple[int, ...], Urn] = {}
        self.location_columns = tuple(i for i, v in enumerate(self.variables) if v.kind is Kind.LOCATION)

    def __repr__(self) -> str:
        return f"<sketch {self.index} of {self.task.name}: {counted(len(self.variables), 'variable')}>"

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
        found = self._read(chosen)
        if chosen not in self._probed:
            self._probed.add(chosen)
            self._structures[chosen] = found = self._probe(found)
        if isinstance(found, UnsupportedSketch):
            raise found
        return found

    def _read(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        """The program for all compute locations, perhaps not yet compared with TVM."""
        if chosen not in self._structures:
            self._structures[chosen] = self._build(chosen)
        return self._structures[chosen]

    def _build(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        names = [postprocessor.name for postprocessor in self.postprocessors]
        try:
            replay = Replay(self.task.module, self.task.target, self._trace, self.variables, chosen)
            program = modelled(read_program(replay), replay, self.task, names)
        except UnsupportedSketch as error:
            return error
        gate = program.fits
        for decision, location in zip(chosen, replay.locations, strict=True):
            gate = gate * dict(location.candidates).get(decision, const(0))
        limits = refusals(program, replay, self.task, names)
        for limit in limits:
            gate = gate * at_most(limit.formula, 0)
        return Structure(chosen, program, tuple(replay.locations), limits, gate)

    def _probe(self, structure: Structure | UnsupportedSketch) -> Structure | UnsupportedSketch:
        """Compare a program whose blocks have moved with TVM's loops at a few points; what is wrong where they differ.

        Regions under moved blocks are TVM's own, but its simplifier sometimes leaves them too wide for symbolic tiles.
        """
        if isinstance(structure, UnsupportedSketch) or not structure.moved:
            return structure
        rows = self._urn(structure).draw(_PROBED, np.random.default_rng(0))
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
        count = options.whole(count, "count", most=_MOST, where="Sketch.sample")
        seed = options.seed(seed, where="Sketch.sample")
        paths = options.whole(paths, "paths", least=1, where="Sketch.sample")
        rng = np.random.default_rng(seed)
        if not self.understood:
            return self._sample_accepted(count, rng)
        if not self.location_columns:
            return self._sample_valid(count, [()], rng)
        drawn = [self._sample_path(row, rng) for row in self._any.draw(min(count, paths), rng)]
        return self._sample_valid(count, drawn, rng)

    def valid(self, points: Points) -> npt.NDArray[np.bool_]:
        """bool[n]: which of int64[n, variables] satisfy every constraint. Raises InvalidPoint for a wrong width."""
        points = self.checked(points)
        good = np.ones(len(points), dtype=bool)
        for column, variable in enumerate(self.variables):
            if variable.kind is not Kind.LOCATION:
                good &= np.isin(points[:, column], variable.choices)
        for _, columns in groups(self.variables):
            first = self.variables[columns[0]]
            if first.kind is Kind.TILE:
                good &= points[:, columns].prod(axis=1) == first.extent
        if not self.understood:
            return good
        for locations, rows in self.by_structure(points):
            good[rows] &= self._placed(points[rows], locations)
        return good

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
        rows = _whole_numbers(points)
        if rows is None or rows.ndim != 2 or rows.shape[1] != len(self.variables):
            what = f"are {shown(points)}" if rows is None else f"have shape {rows.shape}"
            raise InvalidPoint(
                f"points {what}, not whole numbers [count, {len(self.variables)}]",
                where=repr(self),
                remedy="give one row a point, one column a variable of Sketch.variables",
            )
        return rows

    def _row(self, point: npt.ArrayLike) -> tuple[int, ...]:
        """One point as a tuple, valid or not. Raises InvalidPoint as `checked` does."""
        row = _whole_numbers(point)
        if row is None or row.shape != (len(self.variables),):
            what = f"it is {shown(point)}" if row is None or row.ndim != 1 else f"it has {counted(len(row), 'number')}"
            raise InvalidPoint(
                f"{what}, not {counted(len(self.variables), 'whole number')}",
                where=f"point of {self!r}",
                remedy="give one number a variable of Sketch.variables",
            )
        return tuple(row.tolist())

    @cached_property
    def _any(self) -> Urn:
        """Values for everything but compute locations, whether they are valid or not."""
        return Urn(self.variables, const(1))

    def _urn(self, structure: Structure) -> Urn:
        """The points for chosen compute locations."""
        if structure.locations not in self._urns:
            self._urns[structure.locations] = Urn(self.variables, structure.gate)
        return self._urns[structure.locations]

    def _sample_valid(self, count: int, paths: Sequence[tuple[int, ...]], rng: np.random.Generator) -> Points:
        """Rows drawn until enough are valid, each with one of the paths. Raises InvalidSchedule where none are."""
        urns = [self._urn(self.structure(path)) for path in paths]
        sizes = np.array([urn.size for urn in urns], dtype=np.float64)
        if not sizes.any():
            raise InvalidSchedule("no point is valid", where=repr(self))
        kept: list[Points] = []
        found, tried = 0, 0
        while found < count:
            if not found and tried > _HOPELESS:
                raise InvalidSchedule(f"none of {tried} random points is valid", where=repr(self))
            missing = count - found
            number = math.ceil(1.1 * missing * tried / found) if found else max(missing, tried)
            number = min(number, _BATCH)
            drawn = []
            for path, urn, share in zip(paths, urns, rng.multinomial(number, sizes / sizes.sum()), strict=True):
                rows = urn.draw(int(share), rng)
                rows[:, self.location_columns] = path
                drawn.append(rows)
            rows = np.concatenate(drawn)
            kept.append(rng.permutation(rows) if len(paths) > 1 else rows)
            found, tried = found + len(rows), tried + number
        return np.concatenate([np.empty((0, len(self.variables)), dtype=np.int64), *kept])[:count]

    def _sample_path(self, row: Points, rng: np.random.Generator) -> tuple[int, ...]:
        """Compute locations that TVM could draw for these tiles, one after the other."""
        return next(self._paths((), self.values(row[None, :]), rng))

    def _paths(
        self, chosen: tuple[int, ...], values: dict[str, npt.NDArray[np.float64]], rng: np.random.Generator
    ) -> Iterator[tuple[int, ...]]:
        """Ways to go on from the locations chosen so far, in random order. Only where the last is known a program is
        compared with TVM: on the way there it takes long, and says nothing about where blocks will be."""
        depth, count = len(chosen), len(self.location_columns)
        if depth == count:
            if self._holds(chosen):
                yield chosen
            return
        structure = self._read((*chosen, *[-1] * (count - depth)))
        if isinstance(structure, UnsupportedSketch):
            return
        offered = structure.offered[depth].candidates
        gates = Graph([gate for _, gate in offered]).evaluate(values, 1)[0]
        open_ = [d for (d, _), gate in zip(offered, gates, strict=True) if gate > 0.5]
        rng.shuffle(open_)
        # A place that TVM offers for these tiles is passed over where the block cannot be read symbolically, or no
        # tiles satisfy the rest of the gate.
        for decision in open_:
            after = self._read((*chosen, decision, *[-1] * (count - depth - 1)))
            if decision == -1 or (isinstance(after, Structure) and self._urn(after).size > 0):
                yield from self._paths((*chosen, decision), values, rng)

    def _holds(self, locations: tuple[int, ...]) -> bool:
        """Whether the program for these locations is TVM's; blocks at the root alone need no comparison."""
        try:
            self.structure(locations)
        except UnsupportedSketch:
            return False
        return True

    def _placed(self, points: Points, locations: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """bool[n]: whether TVM would leave the blocks where `locations` puts them."""
        try:
            gate = self.structure(locations).gate
        except UnsupportedSketch:
            return np.zeros(len(points), dtype=bool)
        if gate.is_const:
            return np.full(len(points), bool(gate.value))
        return Graph([gate]).evaluate(self.values(points), len(points))[:, 0] > 0.5

    def _sample_by_tvm(self, count: int, rng: np.random.Generator) -> Points:
        points = [self._draw_by_tvm(rng) for _ in range(count)]
        return np.array(points, dtype=np.int64).reshape(count, len(self.variables))

    def _draw_by_tvm(self, rng: np.random.Generator) -> tuple[int, ...]:
        """What TVM draws for every variable, whether postprocessors accept it or not."""
        schedule = self._new_schedule(int(rng.integers(1, 2**30)))
        tvmlib.Trace(self._trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        return point_of(schedule.trace, self.variables)

    def _sample_accepted(self, count: int, rng: np.random.Generator) -> Points:
        """Points that TVM draws and its postprocessors accept, as far as a few attempts find any."""
        points: list[tuple[int, ...]] = []
        for _ in range(count):
            point = self._draw_by_tvm(rng)
            for _ in range(_ATTEMPTS):
                if self.accepts(point):
                    break
                point = self._draw_by_tvm(rng)
            points.append(point)
        return np.array(points, dtype=np.int64).reshape(count, len(self.variables))

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
        except tvmlib.TVM_ERRORS as error:
            if not tvmlib.refusal(error):
                raise
            reason = (str(error).strip().splitlines() or [""])[-1]
            raise InvalidSchedule(f"TVM refused the point {wanted}: {reason[:160]}", where=repr(self)) from error
        if found != wanted:
            raise InvalidSchedule(f"TVM replaced the point {wanted} by {found}", where=repr(self))
        if not accepted:
            raise InvalidSchedule(f"a postprocessor refused the point {wanted}", where=repr(self))
        return schedule

    def accepts(self, point: Sequence[int]) -> bool:
        """Whether TVM takes a point as it is. Raises InvalidPoint as `schedule` does."""
        try:
            self.schedule(point)
        except InvalidSchedule:
            return False
        return True

    def point(self, trace: Trace) -> tuple[int, ...]:
        """The point of a MetaSchedule trace of this sketch: one number a variable. Raises InvalidPoint for others."""
        if not isinstance(trace, tvmlib.Trace):
            raise InvalidPoint(
                f"it is {kind_of(trace)}, not a trace", where=repr(self), remedy="give the trace of a schedule: s.trace"
            )
        own = tvmlib.Trace(list(trace.insts)[: len(self._trace.insts)], {})  # postprocessors' steps may follow
        if sketch_key(own) != self.key:
            raise InvalidPoint("the trace's instructions are not this sketch's", where=repr(self))
        return point_of(trace, self.variables)

    def in_range(self, point: Sequence[int]) -> bool:
        """Whether each number is one that its variable can have, and tiles make up their loops; compute locations are
        left to TVM."""
        try:
            point = self._row(point)
        except InvalidPoint:
            return False
        rest = [(v, x) for v, x in zip(self.variables, point, strict=True) if v.kind is not Kind.LOCATION]
        if any(x not in v.choices for v, x in rest):
            return False
        return all(
            math.prod(point[c] for c in columns) == first.extent
            for _, columns in groups(self.variables)
            if (first := self.variables[columns[0]]).kind is Kind.TILE
        )

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
        return tvmlib.Schedule(self.task.module, seed=seed, debug_mask="none", error_render_level="none")


def _whole_numbers(values: npt.ArrayLike) -> Points | None:
    """The values as an array of integers; None where they are something else."""
    try:
        array = np.asarray(values)
    except Exception:  # ragged lists, tensors that NumPy cannot hold
        return None
    if array.dtype.kind == "f" and bool((array == np.floor(array)).all()) and bool((np.abs(array) < 2**53).all()):
        return array.astype(np.int64)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and bool((array >= 2**63).any()):
        return None
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else None
