"""How points of a sketch vary: one mutated, two crossed.

In: points. Out: points, of which not all are valid: `Sketch.valid` tells. Whatever moves keeps the product of the
factors of a loop. Compute locations are never changed alone, since each combination of them needs a program and
formulas of its own: children take those of other points, all together.
"""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.expr.factors import divisors
from felixlike.symbolic.program.variables import Variable, groups

Columns = npt.NDArray[np.int64]

_TILE, _OTHER, _PLACES = 0.9, 0.05, 0.05
"""How often what is mutated is a tile, an unroll limit or the like, or where blocks are computed: MetaSchedule's odds
(its mutators of parallel loops have no variables here)."""


class Variation:
    """The moves of one sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self._groups: list[tuple[list[Variable], Columns]] = []
        odds: list[float] = []
        for _, columns in groups(sketch.variables):
            members = [sketch.variables[c] for c in columns]
            if members[0].kind is Kind.LOCATION or all(m.fixed for m in members):
                continue
            self._groups.append((members, np.array(columns)))
            odds.append(_TILE if members[0].kind is Kind.TILE else _OTHER)
        kinds = [members[0].kind is Kind.TILE for members, _ in self._groups]
        for tile in (True, False):
            if count := kinds.count(tile):
                odds = [odd / count if kind is tile else odd for odd, kind in zip(odds, kinds, strict=True)]
        if sketch.location_columns:
            odds.append(_PLACES)
        self._odds = np.array(odds) / sum(odds) if odds else np.array([])

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to vary."""
        return not len(self._odds)

    @cached_property
    def columns(self) -> list[Columns]:
        """Columns that vary together: the factors of a loop, a limit, all compute locations."""
        found = [columns for _, columns in self._groups]
        return [*found, np.array(self.sketch.location_columns)] if self.sketch.location_columns else found

    def mutated(self, points: Points, rng: np.random.Generator) -> Points:
        """Each of int64[n, variables] with one thing changed: a factor moved from one part of a loop to another,
        another limit, the compute locations of another of the points."""
        found = points.copy()
        if self.fixed or not len(points):
            return found
        chosen = rng.choice(len(self._odds), size=len(points), p=self._odds)
        for place, (members, columns) in enumerate(self._groups):
            rows = np.flatnonzero(chosen == place)
            if len(rows) and members[0].kind is Kind.TILE:
                _move_factor(found, rows, columns, members[0].extent, rng)
            elif len(rows):
                choices = np.array(members[0].choices)
                here = np.searchsorted(choices, found[rows, columns[0]])
                found[rows, columns[0]] = choices[(here + rng.integers(1, len(choices), len(rows))) % len(choices)]
        rows = np.flatnonzero(chosen == len(self._groups))
        places = np.array(self.sketch.location_columns, dtype=np.int64)
        found[rows[:, None], places] = points[rng.integers(len(points), size=(len(rows), 1)), places]
        return found

    def crossed(self, ones: Points, others: Points, share: float, rng: np.random.Generator) -> Points:
        """Each point with some of its groups from another's, this share of them and at least one: int64[n, variables]
        from two of them."""
        found = ones.copy()
        if not self.columns or not len(ones):
            return found
        taken = rng.random((len(ones), len(self.columns))) < share
        taken[np.arange(len(ones)), rng.integers(len(self.columns), size=len(ones))] = True
        for place, columns in enumerate(self.columns):
            rows = np.flatnonzero(taken[:, place])
            found[rows[:, None], columns] = others[rows[:, None], columns]
        return found


def _move_factor(
    points: Points, rows: npt.NDArray[np.int64], columns: Columns, extent: int, rng: np.random.Generator
) -> None:
    """In each row, some divisor of one part of a loop becomes a factor of another."""
    values, counts, table = _divisors_above_one(extent)
    parts = points[rows[:, None], columns]
    weights = np.where(parts > 1, rng.random(parts.shape), -1.0)
    giver = weights.argmax(axis=1)  # any that has something to give
    taker = (giver + rng.integers(1, len(columns), len(rows))) % len(columns) if len(columns) > 1 else giver
    index = np.searchsorted(values, parts[np.arange(len(rows)), giver])
    pick = (rng.random(len(rows)) * counts[index]).astype(np.int64)
    factor = np.where(counts[index] > 0, table[index, pick], 1)
    parts[np.arange(len(rows)), giver] //= factor
    parts[np.arange(len(rows)), taker] *= factor
    points[rows[:, None], columns] = parts


@cache
def _divisors_above_one(extent: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The divisors of a number, how many divisors above 1 each has, and these: int64[n], int64[n], int64[n, most]."""
    values = divisors(extent)
    own = [[d for d in divisors(value) if d > 1] for value in values]
    table = np.ones((len(values), max(1, *map(len, own)) if own else 1), dtype=np.int64)
    for row, found in enumerate(own):
        table[row, : len(found)] = found
    return np.array(values), np.array([len(found) for found in own]), table


class Variations:
    """Those of all understood sketches of a space."""

    def __init__(self, space: Space) -> None:
        self._found = {sketch.key: Variation(sketch) for sketch in space.understood}

    def of(self, candidate: Candidate) -> Variation:
        """The moves of a candidate's sketch, one of the space or of another that a store remembers."""
        if candidate.sketch.key not in self._found:
            self._found[candidate.sketch.key] = Variation(candidate.sketch)
        return self._found[candidate.sketch.key]
