"""Build the structures of a sketch on demand, and compare those whose blocks have moved with TVM's loops.

Input: a `Scheduler`. Output: `StructureCache`, which returns one `Structure` per combination of compute locations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from felixlike._util.spent import on
from felixlike.errors import InvalidPoint, InvalidSchedule, UnsupportedSketch, WrongSketch
from felixlike.symbolic.program.nest import concrete_nest, scheduled_nest
from felixlike.symbolic.program.uniform_sampler import UniformSampler
from felixlike.symbolic.program.variables import Kind
from felixlike.symbolic.replay.scheduler import Scheduler
from felixlike.symbolic.replay.structure import Structure, read_structure


@dataclass(frozen=True, slots=True)
class _Probes:
    """How many points of a program are compared with TVM, if blocks moved. All numbers are chosen by hand.

    Attributes:
        drawn: Number of random points from which the compared points are selected.
        compared: Number of points that are compared.
        with_divisions: Number of points that are compared if indices contain divisions.
    """

    drawn: int = 64
    compared: int = 2
    with_divisions: int = 8


_PROBES = _Probes()


class StructureCache:
    """The structures of a sketch, each built once.

    Args:
        scheduler: Makes the sketch's schedules.

    Attributes:
        scheduler: Makes the sketch's schedules.
        columns: The columns of the variables that decide compute locations.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.columns = tuple(i for i, v in enumerate(scheduler.variables) if v.kind is Kind.LOCATION)
        self._structures: dict[tuple[int, ...], Structure | UnsupportedSketch] = {}
        self._probed: set[tuple[int, ...]] = set()
        self._samplers: dict[tuple[int, ...], UniformSampler] = {}

    def at(self, locations: Sequence[int]) -> Structure:
        """Return the structure for chosen compute locations.

        Args:
            locations: One number per location variable. Missing ones are at the root.

        Raises:
            UnsupportedSketch: If there is no symbolic program for these locations.
            InvalidPoint: If there are more locations than location variables.
        """
        if len(locations) > len(self.columns):
            raise InvalidPoint(
                f"expected at most {len(self.columns)} compute locations, got {len(locations)}",
                where=self.scheduler.label,
                remedy="see Sketch.location_columns",
            )
        chosen = (*locations, *self.root[len(locations) :])
        structure = self.unprobed(chosen)
        if chosen not in self._probed:
            self._probed.add(chosen)
            with on("replaying"):
                self._structures[chosen] = structure = self.probe(structure)
        if isinstance(structure, UnsupportedSketch):
            raise structure
        return structure

    @cached_property
    def reason(self) -> str:
        """Return why the sketch has no symbolic program; empty if it has one."""
        try:
            self.at(())
        except UnsupportedSketch as error:
            return str(error)
        return ""

    @property
    def root(self) -> tuple[int, ...]:
        """Return the compute locations that leave every movable block at the root."""
        return (-1,) * len(self.columns)

    @property
    def is_wrong(self) -> bool:
        """Return whether TVM lowers the sketch to programs that compute wrong results."""
        return bool(self.reason) and isinstance(self._structures[self.root], WrongSketch)

    def unprobed(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        """Return the structure for all compute locations, or the error if there is none.

        The structure may not have been compared with TVM yet.
        """
        if chosen not in self._structures:
            with on("replaying"):
                self._structures[chosen] = self._read(chosen)
        return self._structures[chosen]

    def sampler(self, structure: Structure) -> UniformSampler:
        """Return the sampler of points with a structure's compute locations."""
        if structure.locations not in self._samplers:
            self._samplers[structure.locations] = UniformSampler(self.scheduler.variables, structure.gate)
        return self._samplers[structure.locations]

    def _read(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch:
        """Build the structure for all compute locations; return the error if there is none."""
        scheduler = self.scheduler
        names = [postprocessor.name for postprocessor in scheduler.postprocessors]
        try:
            return read_structure(scheduler.task, scheduler.trace, scheduler.variables, names, chosen)
        except UnsupportedSketch as error:
            return error

    def probe(self, structure: Structure | UnsupportedSketch) -> Structure | UnsupportedSketch:
        """Compare a program whose blocks have moved with TVM's loops at a few points; return an error if they differ.

        Regions under moved blocks come from TVM, but its simplifier may leave them too wide for symbolic tiles.
        """
        if isinstance(structure, UnsupportedSketch) or not structure.moved:
            return structure
        rows = self.sampler(structure).draw(_PROBES.drawn, np.random.default_rng(0))
        rows[:, self.columns] = structure.locations
        stores = (store for store, _ in structure.program.stores())
        has_divisions = any(index.floors for store in stores for access in store.accesses for index in access.indices)
        count = _PROBES.with_divisions if has_divisions else _PROBES.compared
        probed_rows = np.argsort(-(rows > 1).sum(axis=1), kind="stable")[:count]
        names, label = [v.name for v in self.scheduler.variables], self.scheduler.label
        for point in map(tuple, rows[probed_rows].tolist()):
            try:
                tvm_nest = scheduled_nest(self.scheduler.schedule(point))
            except InvalidSchedule as error:
                return UnsupportedSketch(f"TVM refuses its points: {error}", where=label)
            if concrete_nest(structure.program, dict(zip(names, point, strict=True))) != tvm_nest:
                what = f"with blocks at {structure.locations} the symbolic loops are wider than TVM's"
                return UnsupportedSketch(what, where=label)
        return structure
