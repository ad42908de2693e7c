"""Search by a genetic algorithm without a cost model, as Tensor Comprehensions does (Vasilache et al. 2018, §5.3).

Inputs: a space and observations. Output: candidates. The fastest measured points are the population. Parents are drawn
with probability proportional to their speed. A child takes each group of variables from one of two parents, and may be
mutated. The fastest points remain parents in all later rounds (elites).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.space import Space
from felixlike.search.strategy import Configurable, Key, Observations, aside, draw
from felixlike.search.variation import Variations

_TRIES = 16
"""Maximum number of attempts to breed a batch; missing candidates are then drawn at random. Chosen by hand."""


@dataclass(eq=False)
class Genetic(Configurable):
    """Cross and mutate the fastest measured points.

    Args:
        population: Number of fastest measured points that serve as parents. The first `population` candidates of a task
            are random.
        crossover: Share of children with two parents, 0 to 1. The others are mutated copies of one parent.
        mutation: Share of children of two parents that are also mutated, 0 to 1.

    Raises:
        InvalidOption: A value is out of range.
    """

    population: int = 16
    crossover: float = 0.8
    mutation: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        checked(self, population=2, crossover=(0.0, 1.0), mutation=(0.0, 1.0))

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`."""
        missing = min(count, max(0, self.population - len(known.seen)))
        opaque = aside(space, known, count - missing, rng)
        candidates = {c.key: c for c in opaque}
        candidates |= self._brood(space, known, count - missing - len(opaque), rng)
        taken = known.seen | candidates.keys()
        return [*candidates.values(), *draw(space, count - len(candidates), taken, rng, origin="random")]

    def _brood(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> dict[Key, Candidate]:
        """Return up to `count` new children of the fastest measured points."""
        parents = [(s, c) for s, c in known.best if c.sketch.is_symbolic][: self.population]
        candidates: dict[Key, Candidate] = {}
        if not parents:
            return candidates
        speeds = 1.0 / np.array([seconds for seconds, _ in parents])
        variations = Variations(space)
        for _ in range(_TRIES):
            if len(candidates) >= count:
                break
            for place in rng.choice(len(parents), size=count - len(candidates), p=speeds / speeds.sum()):
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
                if child.key not in known.seen and child.key not in candidates and one.sketch.valid(point)[0]:
                    candidates[child.key] = child
        return candidates
