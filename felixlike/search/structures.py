"""Select the structures to search, by a bandit over sketches and compute locations.

A structure is a sketch with fixed compute locations. Gradients change tile factors but not structures. A new structure
costs 0.1 s or more until its program is read and its formulas are built. The bandit therefore keeps the few structures
whose points have the best predicted scores, and each round adds a few new ones, from each sketch in turn.

Inputs: a space and the scores of points. Output: random points of the structures in use.
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
"""A sketch's key and its compute locations."""


@dataclass(slots=True)
class Structures:
    """The structures of one task.

    Attributes:
        kept: Structures in use, with the best score of their points in the last round; inf for new ones.
        rounds: Number of rounds so far.
    """

    kept: dict[Structure, float] = field(default_factory=dict)
    rounds: int = 0

    def draw(
        self, space: Space, count: int, rng: np.random.Generator, *, first: int, fresh: int, live: int
    ) -> list[tuple[Sketch, Points]]:
        """Sample about `count` random points of all structures in use, grouped by sketch.

        Args:
            space: The task's search space.
            count: Approximate number of points.
            rng: Source of random numbers.
            first: Structures drawn per sketch in the first round.
            fresh: New structures in each later round.
            live: Maximum number of structures kept from earlier rounds, see `keep`.

        Returns:
            (sketch, int64[n, variables]) for each sketch.
        """
        sketches = {sketch.key: sketch for sketch in space.symbolic}
        if not self.rounds:
            new = [(sketch, path) for sketch in sketches.values() for path in _paths(space, sketch, first, rng)]
        else:
            turn = [space.symbolic[(self.rounds * fresh + i) % len(space.symbolic)] for i in range(fresh)]
            new = [(sketch, _paths(space, sketch, 1, rng)[0]) for sketch in turn]
        self.rounds += 1
        best = sorted(self.kept, key=lambda structure: -self.kept[structure])[:live]
        self.kept = {structure: self.kept[structure] for structure in best}
        for sketch, path in new:
            self.kept.setdefault((sketch.key, path), np.inf)
        share = max(1, count // max(1, len(self.kept)))
        points_of: dict[str, list[Points]] = {}
        for key, path in list(self.kept):
            try:
                points_of.setdefault(key, []).append(sketches[key].sampler.among([path], share, rng))
            except InvalidSchedule:
                del self.kept[key, path]
        return [(sketches[key], np.unique(np.concatenate(points), axis=0)) for key, points in points_of.items()]

    def keep(self, scored: Sequence[Candidate], measured: Sequence[Candidate]) -> None:
        """Update the scores of structures; those of `measured` stay in use regardless of their scores."""
        best: dict[Structure, float] = {}
        for candidate in scored:
            structure = structure_of(candidate)
            best[structure] = max(best.get(structure, -np.inf), candidate.score)
        self.kept = {structure: best.get(structure, -np.inf) for structure in self.kept}
        for candidate in measured:
            self.kept[structure_of(candidate)] = np.inf


def drawn_points(space: Space, count: int, rng: np.random.Generator, *, paths: int) -> list[tuple[Sketch, Points]]:
    """Sample valid points of all structures, with equal probability of each symbolic sketch.

    Args:
        space: The task's search space, with at least one symbolic sketch.
        count: Number of points.
        rng: Source of random numbers.
        paths: Maximum number of combinations of compute locations per sketch.

    Returns:
        (sketch, int64[n, variables]) for each sketch that is drawn.
    """
    shares = np.bincount(rng.integers(len(space.symbolic), size=count), minlength=len(space.symbolic))
    drawn: list[tuple[Sketch, Points]] = []
    for sketch, share in zip(space.symbolic, shares.tolist(), strict=True):
        if share:
            space.deadline.check()
            drawn.append((sketch, sketch.sample(share, int(rng.integers(2**31)), paths=paths)))
    return drawn


def _paths(space: Space, sketch: Sketch, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Return the compute locations of some structures of a sketch. Raise OutOfTime after the deadline."""
    space.deadline.check()
    return sketch.sampler.paths(count, rng)


def structure_of(candidate: Candidate) -> Structure:
    """Return the structure of a candidate."""
    return candidate.sketch.key, tuple(candidate.point[i] for i in candidate.sketch.location_columns)
