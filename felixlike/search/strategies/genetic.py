"""A genetic search without any model, as Tensor Comprehensions' autotuner is (Vasilache et al. 2018, §5.3).

In: a space, what is known. Out: candidates. What was measured is the population: parents are drawn by their speed,
children take each group of numbers from one of two parents, some numbers are mutated, and the fastest stay parents for
ever (elites).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.space import Space
from felixlike.search.strategy import Key, Observations, Strategy, aside, draw
from felixlike.search.variation import Variations

_TRIES = 16
"""Broods of a round before what is missing is drawn at random."""


@dataclass(eq=False)
class Genetic(Strategy):
    """Crosses and mutates the fastest measured points.

    population: the fastest measured points that are parents; as many random ones come first.  crossover: share of
    children with two parents.  mutation: share of children that are mutated. Raises InvalidOption for values out of
    range."""

    population: int = 16
    crossover: float = 0.8
    mutation: float = 0.4

    def __post_init__(self) -> None:
        checked(self, population=2, crossover=(0.0, 1.0), mutation=(0.0, 1.0))

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """See `Strategy.propose`."""
        missing = min(count, max(0, self.population - len(known.seen)))
        opaque = aside(space, known, count - missing, rng)
        found = {c.key: c for c in opaque}
        found |= self._brood(space, known, count - missing - len(opaque), rng)
        taken = known.seen | found.keys()
        return [*found.values(), *draw(space, count - len(found), taken, rng, origin="random")]

    def _brood(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> dict[Key, Candidate]:
        parents = [(s, c) for s, c in known.best if c.sketch.understood][: self.population]
        found: dict[Key, Candidate] = {}
        if not parents:
            return found
        speeds = 1.0 / np.array([seconds for seconds, _ in parents])
        variations = Variations(space)
        for _ in range(_TRIES):
            if len(found) >= count:
                break
            for place in rng.choice(len(parents), size=count - len(found), p=speeds / speeds.sum()):
                one = parents[place][1]
                mates = [c for _, c in parents if c.sketch.key == one.sketch.key and c is not one]
                moves, point = variations.of(one), np.array([one.point], dtype=np.int64)
                if mates and rng.random() < self.crossover:
                    other = np.array([mates[int(rng.integers(len(mates)))].point], dtype=np.int64)
                    point = moves.crossed(point, other, 0.5, rng)
                    if rng.random() < self.mutation:
                        point = moves.mutated(point, rng)
                else:
                    point = moves.mutated(point, rng)
                child = Candidate(one.sketch, tuple(point[0].tolist()), float("nan"), "bred")
                if child.key not in known.seen and child.key not in found and one.sketch.valid(point)[0]:
                    found[child.key] = child
        return found
