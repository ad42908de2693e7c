"""Gradient search: seeds, descent, rounding, exact re-ranking, a diverse choice (Felix §3.4, Algorithm 1, improved).

In: a space, a cost model, what is known. Out: candidates. Seeds are the best of many random valid points by the exact
formulas and the best points measured so far; every point passed on the way down is rounded to exact factors, checked
against the constraints, scored by the exact formulas, and never proposed twice. Then the neighbours of the best, on the
lattice of valid points, over a few generations: what no slope shows, such as the steps of trees, is found by looking. A
share of each batch is drawn at random, and sketches that are not understood symbolically get theirs by sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.errors import NoSmoothForm, UnsupportedSketch
from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.descent import Descent, Start, descend
from felixlike.search.diversity import spread_out
from felixlike.search.rounding import round_points
from felixlike.search.space import Space
from felixlike.search.strategies.model_guided import ModelGuided
from felixlike.search.strategy import Key, Observations, aside, by_sketch, draw
from felixlike.search.structures import Structure, Structures, structure_of
from felixlike.search.variation import Variations
from felixlike.symbolic import Points, Sketch

_SHORTLIST = 384
"""Best points among which a batch is chosen."""

_PARENTS = 128
"""Points whose neighbours are looked at."""

_CROSSED = 0.25
"""PredicatedSplit of the neighbours that have parts of two points."""

_LEADERS = 3
"""Structures of so many of the best measured points stay in use."""


@dataclass(eq=False)
class Gradient(ModelGuided):
    """Proposes points that the cost model's gradient leads to.

    pool: random points scored before descending.  paths: combinations of compute locations drawn for each sketch in
    the first round.  fresh: new ones in each round after it.  structures: most different (sketch, compute locations)
    in use and among the seeds.  neighbours: points in each of `generations` that differ from one of the best in one
    thing, or have parts of two.  seeds: starts of the descent.  elite: best measured points among the seeds.  noise:
    standard deviation of what is added to the elite's start, in log units.  explore: share of a batch drawn at random.
    optimism: how many standard deviations are added to a score.  apart: how many in choosing a batch, where they fall
    with each that is chosen for all that are like it.  descent: of Adam. Raises InvalidOption for values out of
    range."""

    pool: int = 1024
    paths: int = 3
    fresh: int = 2
    structures: int = 5
    neighbours: int = 1024
    generations: int = 4
    seeds: int = 32
    elite: int = 8
    noise: float = 0.3
    explore: float = 0.125
    optimism: float = 0.5
    apart: float = 1.0
    descent: Descent = field(default_factory=Descent)
    _structures: dict[str, Structures] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        checked(
            self,
            pool=1,
            paths=1,
            fresh=0,
            seeds=1,
            structures=1,
            neighbours=0,
            generations=0,
            elite=0,
            noise=0.0,
            explore=(0.0, 1.0),
            optimism=0.0,
            apart=0.0,
        )

    def begin(self, model: CostModel) -> None:
        """See `Strategy.begin`."""
        super().begin(model)
        self._structures.clear()

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """See `Strategy.propose`. Without a model that knows anything, and for few points, this is random search."""
        model = self.knows(space, count)
        if model is None:
            return draw(space, count, known.seen, rng, origin="random")
        opaque = aside(space, known, count, rng)
        pool = self._pool(space, model, known, rng)
        drawn = [*opaque, *self._explored(pool, known, count - len(opaque), rng)]
        taken = known.seen | {c.key for c in drawn}
        descended = self._descend(space, model, pool, known, rng)
        polished = self._polished(space, model, [*descended, *pool], known, rng)
        chosen = self._batch(space, model, [*polished, *descended, *pool], count - len(drawn), taken)
        missing = count - len(drawn) - len(chosen)
        more = draw(space, missing, taken | {c.key for c in chosen}, rng, origin="random") if missing else []
        return [*chosen, *drawn, *more]

    def _batch(
        self, space: Space, model: CostModel, found: Sequence[Candidate], count: int, taken: AbstractSet[Key]
    ) -> list[Candidate]:
        """The best of what was found that are not all alike to the model."""
        fresh = {c.key: c for c in reversed(found) if c.key not in taken}  # the first of equal ones
        best = sorted(fresh.values(), key=lambda c: -c.score)[:_SHORTLIST]
        if len(best) <= count:
            return best
        groups = [(sketch, [best[i] for i in places]) for sketch, places in by_sketch(best)]
        features = [space.features(sketch, np.array([c.point for c in own])) for sketch, own in groups]
        mean, covariance = model.joint([f for f in features if f is not None], space.task.key)
        ordered = [c for (_, own), f in zip(groups, features, strict=True) if f is not None for c in own]
        return [ordered[i] for i in spread_out(mean, covariance, count, self.apart)]

    def _explored(
        self, pool: Sequence[Candidate], known: Observations, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """Some of the pool whatever their score."""
        wanted = round(self.explore * count)
        fresh = [c for c in pool if c.key not in known.seen]
        return [fresh[i] for i in rng.permutation(len(fresh))[:wanted]]

    def _pool(self, space: Space, model: CostModel, known: Observations, rng: np.random.Generator) -> list[Candidate]:
        """Random valid points of the structures in use, scored, best first."""
        structures = self._structures.setdefault(space.task.key, Structures())
        found: list[Candidate] = []
        drawn = structures.draw(space, self.pool, rng, first=self.paths, fresh=self.fresh, live=self.structures)
        for sketch, points in drawn:
            found += self.scored(space, model, sketch, points, "random", optimism=self.optimism)
        usable = {sketch.key for sketch in space.understood}
        structures.keep(found, [c for _, c in known.best[: self.elite] if c.sketch.key in usable][:_LEADERS])
        return sorted(found, key=lambda c: -c.score)

    def _polished(
        self,
        space: Space,
        model: CostModel,
        found: Sequence[Candidate],
        known: Observations,
        rng: np.random.Generator,
    ) -> list[Candidate]:
        """Neighbours of the best points found, and of the measured ones, over a few generations."""
        if not self.neighbours or not self.generations:
            return []
        variations = Variations(space)
        population = [*sorted(found, key=lambda c: -c.score)[:_PARENTS], *self._elite(space, model, known)]
        every: list[Candidate] = []
        for _ in range(self.generations if population else 0):
            scores = np.array([c.score for c in population])
            odds = np.exp(scores - scores.max())
            parents = rng.choice(len(population), size=self.neighbours, p=odds / odds.sum())
            children: list[Candidate] = []
            for sketch, places in by_sketch([population[i] for i in parents]):
                ones = np.array([population[parents[i]].point for i in places], dtype=np.int64)
                variation = variations.of(population[parents[places[0]]])
                crossed = variation.crossed(ones, ones[rng.permutation(len(ones))], 0.5, rng)
                points = np.where(rng.random((len(ones), 1)) < _CROSSED, crossed, variation.mutated(ones, rng))
                points = np.unique(points[sketch.valid(points)], axis=0)
                children += self.scored(space, model, sketch, points, "neighbour", optimism=self.optimism)
            every += children
            best = {c.key: c for c in (*population, *children)}
            population = sorted(best.values(), key=lambda c: -c.score)[:_PARENTS]
        return every

    def _elite(self, space: Space, model: CostModel, known: Observations) -> list[Candidate]:
        """The best measured points with the scores that they have by now."""
        elite = [c for _, c in known.best[: self.elite] if c.sketch.understood]
        found: list[Candidate] = []
        for sketch, places in by_sketch(elite):
            points = np.array([elite[i].point for i in places], dtype=np.int64)
            found += self.scored(space, model, sketch, points, "elite", optimism=self.optimism)
        return found

    def _descend(
        self, space: Space, model: CostModel, pool: Sequence[Candidate], known: Observations, rng: np.random.Generator
    ) -> list[Candidate]:
        walks = []
        for sketch, seeds, noisy in self._starts(pool, known):
            space.deadline.check()
            noise = rng.normal(0.0, self.noise, size=seeds.shape) * noisy[:, None]
            walk = Start(space.relaxed(sketch), seeds, noise)
            try:
                walk.prepare()
            except (NoSmoothForm, UnsupportedSketch):
                continue  # its points are still scored exactly, and drawn
            walks.append(walk)
        found: list[Candidate] = []
        for walk, passed in zip(walks, descend(walks, model, self.descent, space.task.key), strict=True):
            points = np.unique(round_points(walk.sketch, passed), axis=0)
            points = points[walk.sketch.valid(points)]
            found += self.scored(space, model, walk.sketch, points, "gradient", optimism=self.optimism)
        return sorted(found, key=lambda c: -c.score)

    def _starts(self, pool: Sequence[Candidate], known: Observations) -> list[tuple[Sketch, Points, Points]]:
        """(sketch, seeds, whether to add noise) by structure: the best measured points, then the best of the pool."""
        elite = [c for _, c in known.best[: self.elite] if c.sketch.understood]
        starts: dict[Structure, list[tuple[Candidate, bool]]] = {}
        total = 0
        for candidate, noisy in [*((c, True) for c in elite), *((c, False) for c in pool)]:
            key = structure_of(candidate)
            if key not in starts and len(starts) >= self.structures:
                continue
            if total >= self.seeds:
                break
            starts.setdefault(key, []).append((candidate, noisy))
            total += 1
        return [
            (
                members[0][0].sketch,
                np.array([c.point for c, _ in members], dtype=np.int64),
                np.array([noisy for _, noisy in members], dtype=np.int64),
            )
            for members in starts.values()
        ]
