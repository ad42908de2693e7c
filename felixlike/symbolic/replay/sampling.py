"""Sample random points of a sketch.

Input: the structures of a sketch. Output: `Sampler`, which draws valid points, all equally likely. Without a symbolic
program, it checks each drawn point with TVM, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt

from felixlike.errors import InvalidSchedule, UnsupportedSketch
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import const
from felixlike.symbolic.program.uniform_sampler import UniformSampler
from felixlike.symbolic.replay.points import Points, values_of
from felixlike.symbolic.replay.source_limits import SourceLimits
from felixlike.symbolic.replay.structure_cache import StructureCache


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits on random points. All are chosen by hand.

    Attributes:
        batch: Maximum number of points that are drawn at once.
        hopeless: Number of points without a valid one after which sampling fails.
        long: Number of points without a valid one of short source after which long source is allowed.
        attempts: Number of draws in a row that TVM may refuse before sampling gives up, for a sketch without a symbolic
            program. TVM takes about 10 ms to accept or refuse a point.
        dead_ends: Number of combinations of compute locations in a row without a symbolic program after which all
            blocks stay at the root. If an early location is to blame, no combination of the later ones has one.
    """

    batch: int = 100_000
    hopeless: int = 3_000_000
    long: int = 10_000
    attempts: int = 64
    dead_ends: int = 32


_LIMITS = _Limits()


class Sampler:
    """Sample random points of a sketch.

    Args:
        structures: The sketch's structures.
        source_limits: Limits on the length of GPU source.
    """

    def __init__(self, structures: StructureCache, source_limits: SourceLimits) -> None:
        self._structures, self._source_limits = structures, source_limits
        self._scheduler = structures.scheduler
        self._variables = structures.scheduler.variables
        self._verdicts: dict[tuple[int, ...], bool] = {}
        self._dead_ends = 0  # in a row

    def sample(self, count: int, rng: np.random.Generator, *, paths: int) -> Points:
        """Implement `Sketch.sample` for checked options."""
        if self._structures.reason:
            return self._accepted(count, rng)
        if not self._structures.columns:
            return self.among([()], count, rng)
        return self.among(self.paths(min(count, paths), rng), count, rng)

    def paths(self, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Draw combinations of compute locations for random tiles, as TVM does; likely ones may be drawn repeatedly.

        The sketch must have a symbolic program.
        """
        if not self._structures.columns:
            return [()]
        return [self._path(row, rng) for row in self.any.draw(count, rng)]

    def by_tvm(self, count: int, rng: np.random.Generator) -> Points:
        """Return points that TVM draws, whether postprocessors accept them or not: int64[count, variables]."""
        return self._as_rows([self._by_tvm(rng) for _ in range(count)])

    @cached_property
    def any(self) -> UniformSampler:
        """Return the sampler of all variables but compute locations, without validity tests."""
        return UniformSampler(self._variables, const(1))

    def among(self, paths: Sequence[tuple[int, ...]], count: int, rng: np.random.Generator) -> Points:
        """Draw valid points, each with one of these combinations of compute locations, all equally likely.

        Returns:
            int64[count, variables].

        Raises:
            InvalidSchedule: If no point is valid.
        """
        samplers = [self._structures.sampler(self._structures.at(path)) for path in paths]
        sizes = np.array([sampler.size for sampler in samplers], dtype=np.float64)
        if not sizes.any():
            raise InvalidSchedule("no point is valid", where=self._scheduler.label)
        batches: list[Points] = []
        valid_count, draw_count = 0, 0
        while valid_count < count:
            if not valid_count and draw_count > _LIMITS.hopeless:
                raise InvalidSchedule(f"none of {draw_count} random points is valid", where=self._scheduler.label)
            missing = count - valid_count
            number = math.ceil(1.1 * missing * draw_count / valid_count) if valid_count else max(missing, draw_count)
            number = min(number, _LIMITS.batch)
            drawn = []
            for path, sampler, part_count in zip(
                paths, samplers, rng.multinomial(number, sizes / sizes.sum()), strict=True
            ):
                rows = sampler.draw(int(part_count), rng)
                rows[:, self._structures.columns] = path
                drawn.append(rows)
            rows = np.concatenate(drawn)
            if valid_count or draw_count <= _LIMITS.long:
                rows = rows[self._source_limits.short(rows)]
            batches.append(rng.permutation(rows) if len(paths) > 1 else rows)
            valid_count, draw_count = valid_count + len(rows), draw_count + number
        return np.concatenate([np.empty((0, len(self._variables)), dtype=np.int64), *batches])[:count]

    def _path(self, row: Points, rng: np.random.Generator) -> tuple[int, ...]:
        """Return compute locations that TVM could draw for these tiles."""
        paths = self._paths((), values_of(row[None, :], self._variables), rng)
        for path in islice(paths, _LIMITS.dead_ends - self._dead_ends):
            if path is not None:
                self._dead_ends = 0
                return path
            self._dead_ends += 1
        return self._structures.root

    def _paths(
        self, chosen: tuple[int, ...], values: dict[str, npt.NDArray[np.float64]], rng: np.random.Generator
    ) -> Iterator[tuple[int, ...] | None]:
        """Yield completions of the locations chosen so far, in random order, and None for each dead end.

        Only complete programs are compared with TVM, since the comparison is slow and partial choices do not determine
        where blocks end up.
        """
        depth, count = len(chosen), len(self._structures.columns)
        if depth == count:
            yield chosen if self._holds(chosen) else None
            return
        structure = self._structures.unprobed((*chosen, *[-1] * (count - depth)))
        if isinstance(structure, UnsupportedSketch):
            yield None
            return
        candidates = structure.offered[depth].candidates
        gates = Graph([gate for _, gate in candidates]).evaluate(values, 1)[0]
        decisions = [d for (d, _), gate in zip(candidates, gates, strict=True) if gate > 0.5]
        rng.shuffle(decisions)
        # A location that TVM offers for these tiles is skipped if the block cannot be read symbolically there, or no
        # tiles satisfy the rest of the gate.
        for decision in decisions:
            next_structure = self._structures.unprobed((*chosen, decision, *[-1] * (count - depth - 1)))
            if decision == -1 or (
                not isinstance(next_structure, UnsupportedSketch) and self._structures.sampler(next_structure).size > 0
            ):
                yield from self._paths((*chosen, decision), values, rng)

    def _holds(self, locations: tuple[int, ...]) -> bool:
        """Return whether the program for these locations matches TVM's."""
        try:
            self._structures.at(locations)
        except UnsupportedSketch:
            return False
        return True

    def _accepted(self, count: int, rng: np.random.Generator) -> Points:
        """Return points that TVM's postprocessors accept.

        After too many refusals in a row, the accepted points so far are repeated, or refused ones if there are none.
        """
        accepted: list[tuple[int, ...]] = []
        refused: list[tuple[int, ...]] = []
        failures = 0
        draws = self._candidates(rng)
        while len(accepted) < count and failures < _LIMITS.attempts:
            point = next(draws)
            is_accepted = self._verdict(point)
            (accepted if is_accepted else refused).append(point)
            failures = 0 if is_accepted else failures + 1
        points = accepted or refused
        return self._as_rows([points[i % len(points)] for i in range(count)])

    def _candidates(self, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
        """Yield points that TVM may accept, endlessly.

        Compute locations are only known to TVM. Without them, tiles are drawn here, a thousand times as fast.
        """
        while self._structures.columns:
            yield self._by_tvm(rng)
        while True:
            yield from map(tuple, self.any.draw(_LIMITS.attempts, rng).tolist())

    def _verdict(self, point: tuple[int, ...]) -> bool:
        """Return whether TVM accepts a point; cached."""
        if point not in self._verdicts:
            self._verdicts[point] = self._scheduler.accepts(point)
        return self._verdicts[point]

    def _as_rows(self, points: Sequence[tuple[int, ...]]) -> Points:
        """Return points as int64[count, variables]."""
        return np.array(points, dtype=np.int64).reshape(len(points), len(self._variables))

    def _by_tvm(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Return one point that TVM draws."""
        return self._scheduler.draw(int(rng.integers(1, 2**30)))
