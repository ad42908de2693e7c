"""Gradient search: seeds, descent, rounding, exact re-ranking, a diverse choice (Felix §3.4, Algorithm 1, improved).

In: a space, a cost model, what is known. Out: candidates. Seeds are the best of many valid points by the exact
formulas, random ones and neighbours of the best measured ones, and these themselves; every point passed on the way down
is rounded to exact factors, checked against the constraints, scored by the exact formulas, and never proposed twice. A
share of each batch is drawn at random, and sketches that are not understood symbolically get theirs by sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.errors import UnsupportedSketch
from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.descent import Descent, Walk, descend
from felixlike.search.diversity import diverse
from felixlike.search.guided import Guided
from felixlike.search.rounding import round_points
from felixlike.search.space import Space
from felixlike.search.strategy import Known, aside, by_sketch, draw
from felixlike.search.structures import Structure, Structures, structure_of
from felixlike.search.variation import Variations
from felixlike.smooth import NoSmoothForm
from felixlike.symbolic import Points, Sketch

_CROSSED = 0.25
"""Share of the neighbours that have parts of two measured points."""

_LEADERS = 3
"""Structures of so many of the best measured points stay in use."""


@dataclass(eq=False)
class Gradient(Guided):
    """Proposes points that the cost model's gradient leads to.

    pool: random points scored before descending.  paths: combinations of compute locations drawn for each sketch in
    the first round.  fresh: new ones in each round after it.  structures: most different (sketch, compute locations)
    in use and among the seeds.  neighbours: points scored that differ from the best measured ones in one thing, or have
    parts of two of them: steps that no slope shows.  seeds: starts of the descent.  elite: best measured points among
    the seeds.  noise: standard deviation of what is added to the elite's start, in log units.  explore: share of a
    batch drawn at random.  optimism: how many standard deviations are added to a score when choosing.  descent: of
    Adam. Raises InvalidOption for values out of range."""

    pool: int = 1024
    paths: int = 3
    fresh: int = 2
    structures: int = 5
    neighbours: int = 256
    seeds: int = 32
    elite: int = 8
    noise: float = 0.3
    explore: float = 0.125
    optimism: float = 0.5
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
            elite=0,
            noise=0.0,
            explore=(0.0, 1.0),
            optimism=0.0,
        )

    def begin(self, model: CostModel) -> None:
        """See `Strategy.begin`."""
        super().begin(model)
        self._structures.clear()

    def propose(self, space: Space, known: Known, count: int, rng: np.random.Generator) -> list[Candidate]:
        """See `Strategy.propose`. Without a model that knows anything, and for few points, this is random search."""
        model = self.knows(space, count)
        if model is None:
            return draw(space, count, known.seen, rng, origin="random")
        opaque = aside(space, known, count, rng)
        pool = self._pool(space, model, known, rng)
        drawn = [*opaque, *self._explored(pool, known, count - len(opaque), rng)]
        taken = known.seen | {c.key for c in drawn}
        descended = self._descend(space, model, pool, known, rng)
        chosen = diverse([*descended, *pool], count - len(drawn), taken)
        missing = count - len(drawn) - len(chosen)
        more = draw(space, missing, taken | {c.key for c in chosen}, rng, origin="random") if missing else []
        return [*chosen, *drawn, *more]

    def _explored(
        self, pool: Sequence[Candidate], known: Known, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """Some of the pool whatever their score."""
        wanted = round(self.explore * count)
        fresh = [c for c in pool if c.key not in known.seen]
        return [fresh[i] for i in rng.permutation(len(fresh))[:wanted]]

    def _pool(self, space: Space, model: CostModel, known: Known, rng: np.random.Generator) -> list[Candidate]:
        """Random valid points of the structures in use, scored, best first."""
        structures = self._structures.setdefault(space.task.key, Structures())
        found: list[Candidate] = []
        drawn = structures.draw(space, self.pool, rng, first=self.paths, fresh=self.fresh, live=self.structures)
        for sketch, points in drawn:
            found += self.scored(space, model, sketch, points, "random", optimism=self.optimism)
        found += self._neighbours(space, model, known, rng)
        usable = {sketch.key for sketch in space.understood}
        structures.keep(found, [c for _, c in known.best[: self.elite] if c.sketch.key in usable][:_LEADERS])
        return sorted(found, key=lambda c: -c.score)

    def _neighbours(self, space: Space, model: CostModel, known: Known, rng: np.random.Generator) -> list[Candidate]:
        """Points one step away from the best measured ones, scored."""
        elite = [c for _, c in known.best[: self.elite] if c.sketch.understood]
        found: list[Candidate] = []
        variations = Variations(space)
        for sketch, places in by_sketch(elite):
            points = np.array([elite[i].point for i in places], dtype=np.int64)
            parents = points[rng.integers(len(points), size=self.neighbours * len(places) // len(elite))]
            variation = variations.of(elite[places[0]])
            crossed = variation.crossed(parents, points[rng.integers(len(points), size=len(parents))], 0.5, rng)
            children = np.where(rng.random((len(parents), 1)) < _CROSSED, crossed, variation.mutated(parents, rng))
            children = np.unique(children[sketch.valid(children)], axis=0)
            found += self.scored(space, model, sketch, children, "neighbour", optimism=self.optimism)
        return found

    def _descend(
        self, space: Space, model: CostModel, pool: Sequence[Candidate], known: Known, rng: np.random.Generator
    ) -> list[Candidate]:
        walks = []
        for sketch, seeds, noisy in self._starts(pool, known):
            noise = rng.normal(0.0, self.noise, size=seeds.shape) * noisy[:, None]
            walk = Walk(space.relaxed(sketch), seeds, noise)
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

    def _starts(self, pool: Sequence[Candidate], known: Known) -> list[tuple[Sketch, Points, Points]]:
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
