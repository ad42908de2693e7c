"""Search by evolution with the cost model, as MetaSchedule does.

Inputs: a space, the run's cost model and observations. Output: candidates. The population starts with the best measured
points and random ones. Parents are drawn with probability proportional to predicted speed. A small share of each batch
is random (ε-greedy). TVM replays a trace for every mutation, which takes 1 ms or more; here a mutation changes a few
integers of a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.space import Space
from felixlike.search.strategies.model_guided import ModelGuided
from felixlike.search.strategy import Key, Observations, aside, by_sketch, draw
from felixlike.search.variation import Variations


@dataclass(eq=False)
class Evolutionary(ModelGuided):
    """Mutate a population of points, with MetaSchedule's defaults.

    Args:
        population: Number of points.
        measured: Share of the population taken from the best measured points, 0 to 1.
        generations: Generations per round.
        mutation: Share of children that are mutated, 0 to 1; the others are copies.
        explore: Share of a batch that is random, 0 to 1.
        paths: Maximum number of combinations of compute locations drawn per sketch in a round.
        trees: As for `ModelGuided`.
        correction: As for `ModelGuided`.
        trials_per_round: As for `Strategy`.
        scheduling: As for `Strategy`.
        timing: As for `Strategy`.

    Raises:
        InvalidOption: A value is out of range.
    """

    population: int = 512
    measured: float = 0.2
    generations: int = 4
    mutation: float = 0.85
    explore: float = 0.05
    paths: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (0.0, 1.0)
        checked(self, population=2, measured=shares, generations=0, mutation=shares, explore=shares, paths=1)

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`. Without a trained model, or for few points, they are random."""
        model = self.knows(space, count)
        if model is None:
            return draw(space, count, known.seen, rng, origin="random")
        opaque = aside(space, known, count, rng)
        explored = round(self.explore * (count - len(opaque)))
        best = self._evolved(space, model, known, rng)
        chosen = sorted(best.values(), key=lambda c: -c.score)[: count - len(opaque) - explored]
        taken = known.seen | {c.key for c in (*opaque, *chosen)}
        return [
            *chosen,
            *opaque,
            *draw(space, count - len(opaque) - len(chosen), taken, rng, origin="random"),
        ]

    def _evolved(
        self, space: Space, model: CostModel, known: Observations, rng: np.random.Generator
    ) -> dict[Key, Candidate]:
        """Return the unmeasured points of all generations, scored."""
        candidates: dict[Key, Candidate] = {}
        variations = Variations(space)
        population = self._first(space, model, known, rng)
        for generation in range(self.generations + 1):
            candidates.update((c.key, c) for c in population if c.key not in known.seen)
            if generation == self.generations or not population:
                break
            scores = np.array([c.score for c in population])
            speeds = np.exp(scores - scores.max())
            parents = rng.choice(len(population), size=self.population, p=speeds / speeds.sum())
            population = self._children(space, model, variations, [population[i] for i in parents], rng)
        return candidates

    def _first(self, space: Space, model: CostModel, known: Observations, rng: np.random.Generator) -> list[Candidate]:
        """Return the first population: the best measured points and random ones, scored."""
        elite = [c for _, c in known.best if c.sketch.is_symbolic][: round(self.measured * self.population)]
        share = -(-(self.population - len(elite)) // len(space.symbolic))
        candidates: list[Candidate] = []
        for sketch in space.symbolic:
            points = sketch.sample(share, int(rng.integers(2**31)), paths=self.paths)
            candidates += self.scored(space, model, sketch, points, "random")
        for sketch, places in by_sketch(elite):
            points = np.array([elite[i].point for i in places], dtype=np.int64)
            candidates += self.scored(space, model, sketch, points, "elite")
        return candidates

    def _children(
        self,
        space: Space,
        model: CostModel,
        variations: Variations,
        parents: Sequence[Candidate],
        rng: np.random.Generator,
    ) -> list[Candidate]:
        """Return the scored children of the parents. An invalid mutation leaves the parent unchanged."""
        candidates: list[Candidate] = []
        for sketch, places in by_sketch(parents):
            points = np.array([parents[i].point for i in places], dtype=np.int64)
            changed = variations.of(parents[places[0]]).mutated(points, rng)
            children = np.where(rng.random((len(points), 1)) < self.mutation, changed, points)
            good = sketch.valid(children)
            children = np.unique(np.where(good[:, None], children, points), axis=0)
            candidates += self.scored(space, model, sketch, children, "evolved")
        return candidates
