"""Random points of a sketch.

In: a sketch. Out: `Sampler`, which draws from the valid points, all equally likely. Where there is no symbolic program
that tells which these are, it asks TVM about each point that it draws, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from felixlike.errors import InvalidSchedule, UnsupportedSketch
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import const
from felixlike.symbolic.program.uniform_sampler import UniformSampler
from felixlike.symbolic.replay.points import Points

if TYPE_CHECKING:
    from felixlike.symbolic.replay.sketch import Sketch
    from felixlike.symbolic.replay.structure import Structure

_BATCH = 100_000
"""Most points that are drawn at once."""

_HOPELESS = 3_000_000
"""Random points without a single valid one after which sampling gives up."""

_LONG = 10_000
"""Valid points without a single one whose source is short, after which long ones are taken."""

_ATTEMPTS = 64
"""Draws in a row that TVM refuses, from a sketch that is not understood, before sampling gives up. TVM takes about
10 ms to accept or refuse a point."""


class Sampler:
    """Where a sketch's random points come from."""

    def __init__(self, sketch: Sketch) -> None:
        self._sketch = sketch
        self._urns: dict[tuple[int, ...], UniformSampler] = {}
        self._verdicts: dict[tuple[int, ...], bool] = {}

    def sample(self, count: int, rng: np.random.Generator, *, paths: int) -> Points:
        """`Sketch.sample`, whose options are known to be good."""
        if not self._sketch.understood:
            return self._accepted(count, rng)
        if not self._sketch.location_columns:
            return self.among([()], count, rng)
        return self.among(self.paths(min(count, paths), rng), count, rng)

    def paths(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Combinations of compute locations of an understood sketch, drawn as TVM would for random tiles: one that is
        likely may be drawn again."""
        if not self._sketch.location_columns:
            return [()]
        return [self._path(row, rng) for row in self.any.draw(count, rng)]

    def by_tvm(self, count: int, rng: np.random.Generator) -> Points:
        """int64[count, variables]: what TVM draws, whether postprocessors accept it or not."""
        return self._as_rows([self._by_tvm(rng) for _ in range(count)])

    @cached_property
    def any(self) -> UniformSampler:
        """Values for everything but compute locations, whether they are valid or not."""
        return UniformSampler(self._sketch.variables, const(1))

    def urn(self, structure: Structure) -> UniformSampler:
        """The points for chosen compute locations."""
        if structure.locations not in self._urns:
            self._urns[structure.locations] = UniformSampler(self._sketch.variables, structure.gate)
        return self._urns[structure.locations]

    def among(self, paths: Sequence[tuple[int, ...]], count: int, rng: np.random.Generator) -> Points:
        """int64[count, variables]: random valid points with one of these combinations of compute locations each, all
        equally likely. Raises InvalidSchedule where there are none."""
        urns = [self.urn(self._sketch.structure(path)) for path in paths]
        sizes = np.array([urn.size for urn in urns], dtype=np.float64)
        if not sizes.any():
            raise InvalidSchedule("no point is valid", where=repr(self._sketch))
        kept: list[Points] = []
        found, tried = 0, 0
        while found < count:
            if not found and tried > _HOPELESS:
                raise InvalidSchedule(f"none of {tried} random points is valid", where=repr(self._sketch))
            missing = count - found
            number = math.ceil(1.1 * missing * tried / found) if found else max(missing, tried)
            number = min(number, _BATCH)
            drawn = []
            for path, urn, share in zip(paths, urns, rng.multinomial(number, sizes / sizes.sum()), strict=True):
                rows = urn.draw(int(share), rng)
                rows[:, self._sketch.location_columns] = path
                drawn.append(rows)
            rows = np.concatenate(drawn)
            if found or tried <= _LONG:
                rows = rows[self._sketch.lengths.short(rows)]
            kept.append(rng.permutation(rows) if len(paths) > 1 else rows)
            found, tried = found + len(rows), tried + number
        return np.concatenate([np.empty((0, len(self._sketch.variables)), dtype=np.int64), *kept])[:count]

    def _path(self, row: Points, rng: np.random.Generator) -> tuple[int, ...]:
        """Compute locations that TVM could draw for these tiles, one after the other."""
        return next(self._paths((), self._sketch.values(row[None, :]), rng))

    def _paths(
        self, chosen: tuple[int, ...], values: dict[str, npt.NDArray[np.float64]], rng: np.random.Generator
    ) -> Iterator[tuple[int, ...]]:
        """Ways to go on from the locations chosen so far, in random order. Only where the last is known a program is
        compared with TVM: on the way there it takes long, and says nothing about where blocks will be."""
        depth, count = len(chosen), len(self._sketch.location_columns)
        if depth == count:
            if self._holds(chosen):
                yield chosen
            return
        structure = self._sketch.unprobed((*chosen, *[-1] * (count - depth)))
        if isinstance(structure, UnsupportedSketch):
            return
        offered = structure.offered[depth].candidates
        gates = Graph([gate for _, gate in offered]).evaluate(values, 1)[0]
        open_ = [d for (d, _), gate in zip(offered, gates, strict=True) if gate > 0.5]
        rng.shuffle(open_)
        # A place that TVM offers for these tiles is passed over where the block cannot be read symbolically, or no
        # tiles satisfy the rest of the gate.
        for decision in open_:
            after = self._sketch.unprobed((*chosen, decision, *[-1] * (count - depth - 1)))
            if decision == -1 or (not isinstance(after, UnsupportedSketch) and self.urn(after).size > 0):
                yield from self._paths((*chosen, decision), values, rng)

    def _holds(self, locations: tuple[int, ...]) -> bool:
        """Whether the program for these locations is TVM's."""
        try:
            self._sketch.structure(locations)
        except UnsupportedSketch:
            return False
        return True

    def _accepted(self, count: int, rng: np.random.Generator) -> Points:
        """Points that TVM's postprocessors accept; where `_ATTEMPTS` in a row are refused, those found so far again and
        again, or refused ones if there are none."""
        accepted: list[tuple[int, ...]] = []
        refused: list[tuple[int, ...]] = []
        failures = 0
        draws = self._candidates(rng)
        while len(accepted) < count and failures < _ATTEMPTS:
            point = next(draws)
            good = self._verdict(point)
            (accepted if good else refused).append(point)
            failures = 0 if good else failures + 1
        found = accepted or refused
        return self._as_rows([found[i % len(found)] for i in range(count)])

    def _candidates(self, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
        """Points that TVM may accept, without end. Only TVM knows which compute locations there are; tiles are drawn
        here, in a thousandth of the time."""
        while self._sketch.location_columns:
            yield self._by_tvm(rng)
        while True:
            yield from map(tuple, self.any.draw(_ATTEMPTS, rng).tolist())

    def _verdict(self, point: tuple[int, ...]) -> bool:
        """Whether TVM accepts a point, which it is asked once."""
        if point not in self._verdicts:
            self._verdicts[point] = self._sketch.accepts(point)
        return self._verdicts[point]

    def _as_rows(self, points: Sequence[tuple[int, ...]]) -> Points:
        return np.array(points, dtype=np.int64).reshape(len(points), len(self._sketch.variables))

    def _by_tvm(self, rng: np.random.Generator) -> tuple[int, ...]:
        return self._sketch.drawn_by_tvm(int(rng.integers(1, 2**30)))
