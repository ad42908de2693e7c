"""Mutate points of a sketch and cross two of them.

Input: points. Output: points, which may be invalid (see `Sketch.valid`). Every move preserves the product of the
factors of a loop. Each combination of compute locations needs its own program and formulas, so a child takes all
compute locations of another point together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.expr.factors import divisors
from felixlike.symbolic.program.variables import Variable, groups

Columns = npt.NDArray[np.int64]
"""Indices of variables of a sketch."""


@dataclass(frozen=True, slots=True)
class Odds:
    """Probabilities of mutations: MetaSchedule's values (its mutators of parallel loops have no variables here).

    Attributes:
        tile: Probability of mutating a tile.
        other: Probability of mutating another variable, such as an unroll limit.
        locations: Probability of mutating the compute locations.
    """

    tile: float = 0.9
    other: float = 0.05
    locations: float = 0.05


_ODDS = Odds()


class Variation:
    """The moves between points of one sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self._groups: list[tuple[list[Variable], Columns]] = []
        odds: list[float] = []
        for _, columns in groups(sketch.variables):
            members = [sketch.variables[c] for c in columns]
            if members[0].kind is Kind.LOCATION or all(m.fixed for m in members):
                continue
            self._groups.append((members, np.array(columns)))
            odds.append(_ODDS.tile if members[0].kind is Kind.TILE else _ODDS.other)
        kinds = [members[0].kind is Kind.TILE for members, _ in self._groups]
        for tile in (True, False):
            if count := kinds.count(tile):
                odds = [odd / count if kind is tile else odd for odd, kind in zip(odds, kinds, strict=True)]
        if sketch.location_columns:
            odds.append(_ODDS.locations)
        self._odds = np.array(odds) / sum(odds) if odds else np.array([])

    @property
    def fixed(self) -> bool:
        """Return whether no variable can change."""
        return not len(self._odds)

    @cached_property
    def columns(self) -> list[Columns]:
        """Return groups of columns that vary together: the factors of a loop, a limit, all compute locations."""
        every = [columns for _, columns in self._groups]
        return [*every, np.array(self.sketch.location_columns)] if self.sketch.location_columns else every

    def mutated(self, points: Points, rng: np.random.Generator) -> Points:
        """Mutate one group of variables in each of int64[n, variables].

        A mutation moves a factor from one part of a loop to another, changes a limit, or takes the compute locations of
        another of the points."""
        result = points.copy()
        if self.fixed or not len(points):
            return result
        chosen = rng.choice(len(self._odds), size=len(points), p=self._odds)
        for place, (members, columns) in enumerate(self._groups):
            rows = np.flatnonzero(chosen == place)
            if len(rows) and members[0].kind is Kind.TILE:
                _move_factor(result, rows, columns, members[0].extent, rng)
            elif len(rows):
                choices = np.array(members[0].choices)
                here = np.searchsorted(choices, result[rows, columns[0]])
                result[rows, columns[0]] = choices[(here + rng.integers(1, len(choices), len(rows))) % len(choices)]
        rows = np.flatnonzero(chosen == len(self._groups))
        places = np.array(self.sketch.location_columns, dtype=np.int64)
        result[rows[:, None], places] = points[rng.integers(len(points), size=(len(rows), 1)), places]
        return result

    def crossed(self, ones: Points, others: Points, share: float, rng: np.random.Generator) -> Points:
        """Replace a share of the groups of each point, at least one, by those of another point.

        Args:
            ones: int64[n, variables].
            others: int64[n, variables], the points to take groups from.
            share: Probability of taking a group.
            rng: Source of random numbers.

        Returns:
            int64[n, variables].
        """
        result = ones.copy()
        if not self.columns or not len(ones):
            return result
        taken = rng.random((len(ones), len(self.columns))) < share
        taken[np.arange(len(ones)), rng.integers(len(self.columns), size=len(ones))] = True
        for place, columns in enumerate(self.columns):
            rows = np.flatnonzero(taken[:, place])
            result[rows[:, None], columns] = others[rows[:, None], columns]
        return result


def _move_factor(
    points: Points, rows: npt.NDArray[np.int64], columns: Columns, extent: int, rng: np.random.Generator
) -> None:
    """Move a divisor of one part of a loop to another part, in each row."""
    values, counts, table = _divisors_above_one(extent)
    parts = points[rows[:, None], columns]
    weights = np.where(parts > 1, rng.random(parts.shape), -1.0)
    giver = weights.argmax(axis=1)  # any part larger than 1
    taker = (giver + rng.integers(1, len(columns), len(rows))) % len(columns) if len(columns) > 1 else giver
    index = np.searchsorted(values, parts[np.arange(len(rows)), giver])
    pick = (rng.random(len(rows)) * counts[index]).astype(np.int64)
    factor = np.where(counts[index] > 0, table[index, pick], 1)
    parts[np.arange(len(rows)), giver] //= factor
    parts[np.arange(len(rows)), taker] *= factor
    points[rows[:, None], columns] = parts


@cache
def _divisors_above_one(extent: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a number's divisors, and the count and values of divisors above 1 of each: int64[n], [n], [n, most]."""
    values = divisors(extent)
    above_one = [[d for d in divisors(value) if d > 1] for value in values]
    table = np.ones((len(values), max(1, *map(len, above_one)) if above_one else 1), dtype=np.int64)
    for row, factors in enumerate(above_one):
        table[row, : len(factors)] = factors
    return np.array(values), np.array([len(factors) for factors in above_one]), table


class Variations:
    """The moves of all symbolic sketches of a space."""

    def __init__(self, space: Space) -> None:
        self._by_sketch = {sketch.key: Variation(sketch) for sketch in space.symbolic}

    def of(self, candidate: Candidate) -> Variation:
        """Return the moves of a candidate's sketch, of this space or, for stored candidates, of another one."""
        if candidate.sketch.key not in self._by_sketch:
            self._by_sketch[candidate.sketch.key] = Variation(candidate.sketch)
        return self._by_sketch[candidate.sketch.key]
