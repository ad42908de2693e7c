"""Which structures are worth a look: a bandit over sketches and compute locations.

A structure is a sketch with its blocks at certain places. Tile factors can be led downhill, structures can only be
tried, and each new one costs a tenth of a second or more until it is read and its formulas are made. So few are kept,
those whose points the model likes best, and every round brings few new ones, from each sketch in turn.

In: a space. Out: random points of the structures that are kept, and, told their scores, which to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from felixlike.errors import InvalidSchedule
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.symbolic import Points, Sketch

Structure = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class Structures:
    """Those of one task.  kept: in use, with the best score of their points in the last round (inf for new ones).
    rounds: how many there were."""

    kept: dict[Structure, float] = field(default_factory=dict)
    rounds: int = 0

    def draw(
        self, space: Space, count: int, rng: np.random.Generator, *, first: int, fresh: int, live: int
    ) -> list[tuple[Sketch, Points]]:
        """About `count` random points of all structures in use, by sketch.

        first: structures that are drawn of each sketch in the first round.  fresh: new ones in each later round.  live:
        in use at most, those measured included, see `keep`."""
        sketches = {sketch.key: sketch for sketch in space.understood}
        if not self.rounds:
            new = [(sketch, path) for sketch in sketches.values() for path in _paths(space, sketch, first, rng)]
        else:
            turn = [space.understood[(self.rounds * fresh + i) % len(space.understood)] for i in range(fresh)]
            new = [(sketch, _paths(space, sketch, 1, rng)[0]) for sketch in turn]
        self.rounds += 1
        best = sorted(self.kept, key=lambda structure: -self.kept[structure])[:live]
        self.kept = {structure: self.kept[structure] for structure in best}
        for sketch, path in new:
            self.kept.setdefault((sketch.key, path), np.inf)
        share = max(1, count // max(1, len(self.kept)))
        found: dict[str, list[Points]] = {}
        for key, path in list(self.kept):
            try:
                found.setdefault(key, []).append(sketches[key].sampler.among([path], share, rng))
            except InvalidSchedule:
                del self.kept[key, path]
        return [(sketches[key], np.unique(np.concatenate(points), axis=0)) for key, points in found.items()]

    def keep(self, scored: Sequence[Candidate], measured: Sequence[Candidate]) -> None:
        """Take note of scores; structures of the best measured points stay in use whatever their scores."""
        best: dict[Structure, float] = {}
        for candidate in scored:
            structure = structure_of(candidate)
            best[structure] = max(best.get(structure, -np.inf), candidate.score)
        self.kept = {structure: best.get(structure, -np.inf) for structure in self.kept}
        for candidate in measured:
            self.kept[structure_of(candidate)] = np.inf


def _paths(space: Space, sketch: Sketch, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Compute locations of some structures of a sketch.  Raises OutOfTime."""
    space.deadline.check()
    return sketch.sampler.paths(count, rng)


def structure_of(candidate: Candidate) -> Structure:
    """The structure that a candidate is a point of."""
    return candidate.sketch.key, tuple(candidate.point[i] for i in candidate.sketch.location_columns)
