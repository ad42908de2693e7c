"""Search by gradient descent on smooth formulas (Felix §3.4, Algorithm 1, extended).

Inputs: a space, a cost model and observations. Output: candidates. The steps of a round are:

1. Take seeds: the best of many random valid points by the exact formulas, and the best measured points.
2. Descend, round the points recorded along the trajectories to exact factors, check constraints, and score by the
   exact formulas.
3. Explore neighbours of the best points over a few generations, for effects without a slope such as steps of trees.
4. Select a diverse batch of unmeasured points. A share of it may be random, and non-symbolic sketches are sampled.

Options switch off each part that is not in the paper; `presets.PRESETS["felix"]` has the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace

import numpy as np

from felixlike._util import option_checks
from felixlike.costmodel import CostModel
from felixlike.errors import NoSmoothForm, UnsupportedSketch
from felixlike.hardware import kind_of
from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.descent import Descent, Start, descend
from felixlike.search.diversity import spread_out
from felixlike.search.rounding import round_points
from felixlike.search.space import Space
from felixlike.search.strategies.model_guided import ModelGuided
from felixlike.search.strategy import Key, Observations, aside, by_sketch, draw
from felixlike.search.structures import Structure, Structures, drawn_points, structure_of
from felixlike.search.variation import Variations
from felixlike.symbolic import Points, Sketch


@dataclass(frozen=True, slots=True)
class Selection:
    """How many points the steps of a round select, and how they are combined. All values are chosen by hand.

    Attributes:
        shortlist: Number of best points from which a batch is selected.
        parents: Number of best points whose neighbours are explored.
        crossed: Share of the neighbours that combine two points, 0 to 1.
        leaders: Number of best measured points whose structures stay in use.
    """

    shortlist: int = 384
    parents: int = 128
    crossed: float = 0.25
    leaders: int = 3


_SELECTION = Selection()


@dataclass(frozen=True, slots=True)
class Amounts:
    """Options of `Gradient` whose defaults depend on the target's kind. All values are chosen by hand.

    The values for CPUs are those of several with which seven subgraphs reached 90, 95 and 99 % of their best in the
    fewest seconds: a round of eight candidates is built and timed in one to two seconds there. More points have better
    predicted scores, by 0.03 in log units, but the candidates are not faster. On a GPU, where building takes longer,
    descents of 20 steps lower predicted scores by 0.02 to 0.04.
    """

    structures: int
    seeds: int
    neighbours: int
    generations: int
    descent: Descent


_ON_CPUS = Amounts(
    structures=3,
    seeds=16,
    neighbours=256,
    generations=3,
    descent=Descent(steps=12, learning_rate=0.3, keep_every=3),
)

_ON_GPUS = Amounts(structures=5, seeds=32, neighbours=1024, generations=4, descent=Descent())

_DESCENDED = ("gradient", "gradient's neighbour")
"""Origins of the points of a descent, and of those that were found among their neighbours."""


@dataclass(eq=False)
class Gradient(ModelGuided):
    """Propose points found by following the cost model's gradient.

    Where the default is None, the amount depends on the target's kind, see `Amounts`.

    Args:
        pool: Number of random points that are scored before the descent.
        paths: Combinations of compute locations drawn per sketch in the first round.
        fresh: New combinations in each later round.
        structures: Maximum number of (sketch, compute locations) in use, and among the seeds; by default 3 on a CPU and
            5 on a GPU.
        keep_structures: Whether the structures with the best scores stay in use in later rounds. Without, the points of
            each round are drawn anew from all sketches, and `fresh` has no effect.
        neighbours: Neighbours in each generation: points that differ from one of the best in one group of variables, or
            combine two of them; by default 256 on a CPU and 1024 on a GPU.
        generations: Generations of neighbours per round; by default 3 on a CPU and 4 on a GPU.
        seeds: Number of starting points of the descent; by default 16 on a CPU and 32 on a GPU.
        elite: Number of best measured points among the seeds.
        noise: Standard deviation of the noise added to the elite's starting points, in log units.
        explore: Share of a batch that is drawn at random, 0 to 1. Of 27 such candidates in MetaSchedule's space, none
            was within 10 % of the best; of the others, half were.
        optimism: Number of standard deviations added to a score.
        apart: Number of standard deviations added when a batch is selected. There the standard deviation decreases for
            candidates that resemble a selected one.
        diversify: Whether a batch is selected one by one, with `apart`. Without, it has the best scores.
        descent: Options of the descent; by default 12 steps on a CPU and 40 on a GPU.
        trees: As for `ModelGuided`.
        correction: As for `ModelGuided`.
        trials_per_round: As for `Strategy`.
        scheduling: As for `Strategy`.
        timing: As for `Strategy`.

    Raises:
        InvalidOption: A value is out of range.

    Example:
        >>> fx.optimize(model, example_inputs, strategy=fx.search.Gradient(seeds=64))
    """

    pool: int = 1024
    paths: int = 3
    fresh: int = 2
    structures: int | None = None
    neighbours: int | None = None
    generations: int | None = None
    seeds: int | None = None
    elite: int = 8
    noise: float = 0.3
    explore: float = 0.0
    optimism: float = 0.5
    apart: float = 1.0
    descent: Descent | None = None
    keep_structures: bool = True
    diversify: bool = True
    _structures: dict[str, Structures] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"structures": 1, "seeds": 1, "neighbours": 0, "generations": 0}
        checked(
            self,
            pool=1,
            paths=1,
            fresh=0,
            **{name: limit for name, limit in least.items() if getattr(self, name) is not None},
            elite=0,
            noise=0.0,
            explore=(0.0, 1.0),
            optimism=0.0,
            apart=0.0,
            keep_structures=bool,
            diversify=bool,
        )
        if self.descent is not None:
            option_checks.of_kind(self.descent, Descent, "descent", where="Gradient", remedy="pass a Descent, or None")

    def begin(self, model: CostModel) -> None:
        """Start a run; see `Strategy.begin`."""
        super().begin(model)
        self._structures.clear()

    def _amounts(self, space: Space) -> Amounts:
        """Return how much a round computes for a task: the options that are given, and the defaults of its target."""
        defaults = _ON_CPUS if kind_of(space.task.target).on_host else _ON_GPUS
        given = {amount.name: getattr(self, amount.name) for amount in fields(Amounts)}
        return replace(defaults, **{name: value for name, value in given.items() if value is not None})

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`. Without a trained model, or for few points, they are random."""
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
        self, space: Space, model: CostModel, candidates: Sequence[Candidate], count: int, taken: AbstractSet[Key]
    ) -> list[Candidate]:
        """Select good candidates, by default such that differ according to the model's covariance."""
        # Reversed, so that the first of equal candidates remains.
        fresh = {c.key: c for c in reversed(candidates) if c.key not in taken}
        best = sorted(fresh.values(), key=lambda c: -c.score)[: max(count, _SELECTION.shortlist)]
        if len(best) <= count or not self.diversify:
            return best[:count]
        groups = [(sketch, [best[i] for i in places]) for sketch, places in by_sketch(best)]
        features = [space.features(sketch, np.array([c.point for c in members])) for sketch, members in groups]
        mean, covariance = model.joint(
            [f for f in features if f is not None], self.corrected_task(space), trees=self.trees
        )
        ordered = [c for (_, members), f in zip(groups, features, strict=True) if f is not None for c in members]
        return [ordered[i] for i in spread_out(mean, covariance, count, self.apart)]

    def _explored(
        self, pool: Sequence[Candidate], known: Observations, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """Draw candidates from the pool regardless of their scores."""
        number = round(self.explore * count)
        fresh = [c for c in pool if c.key not in known.seen]
        return [fresh[i] for i in rng.permutation(len(fresh))[:number]]

    def _pool(self, space: Space, model: CostModel, known: Observations, rng: np.random.Generator) -> list[Candidate]:
        """Sample and score valid points of the structures in use; return them best first."""
        candidates: list[Candidate] = []
        if not self.keep_structures:
            for sketch, points in drawn_points(space, self.pool, rng, paths=self.paths):
                candidates += self.scored(space, model, sketch, points, "random", optimism=self.optimism)
            return sorted(candidates, key=lambda c: -c.score)
        structures = self._structures.setdefault(space.task.key, Structures())
        live = self._amounts(space).structures
        drawn = structures.draw(space, self.pool, rng, first=self.paths, fresh=self.fresh, live=live)
        for sketch, points in drawn:
            candidates += self.scored(space, model, sketch, points, "random", optimism=self.optimism)
        usable = {sketch.key for sketch in space.symbolic}
        leaders = [c for _, c in known.best[: self.elite] if c.sketch.key in usable][: _SELECTION.leaders]
        structures.keep(candidates, leaders)
        return sorted(candidates, key=lambda c: -c.score)

    def _polished(
        self,
        space: Space,
        model: CostModel,
        candidates: Sequence[Candidate],
        known: Observations,
        rng: np.random.Generator,
    ) -> list[Candidate]:
        """Return neighbours of the best points, measured ones included, over a few generations."""
        amounts = self._amounts(space)
        if not amounts.neighbours or not amounts.generations:
            return []
        variations = Variations(space)
        population = [
            *sorted(candidates, key=lambda c: -c.score)[: _SELECTION.parents],
            *self._elite(space, model, known),
        ]
        every: list[Candidate] = []
        for _ in range(amounts.generations if population else 0):
            scores = np.array([c.score for c in population])
            odds = np.exp(scores - scores.max())
            parents = rng.choice(len(population), size=amounts.neighbours, p=odds / odds.sum())
            children: list[Candidate] = []
            for sketch, places in by_sketch([population[i] for i in parents]):
                ones = np.array([population[parents[i]].point for i in places], dtype=np.int64)
                variation = variations.of(population[parents[places[0]]])
                crossed = variation.crossed(ones, ones[rng.permutation(len(ones))], 0.5, rng)
                points = np.where(
                    rng.random((len(ones), 1)) < _SELECTION.crossed, crossed, variation.mutated(ones, rng)
                )
                valid = np.flatnonzero(sketch.valid(points))
                points, first = np.unique(points[valid], axis=0, return_index=True)
                scored = self.scored(space, model, sketch, points, "neighbour", optimism=self.optimism)
                descended = [population[parents[places[i]]].origin in _DESCENDED for i in valid[first]]
                children += [
                    replace(child, origin=_DESCENDED[1]) if of_descent else child
                    for child, of_descent in zip(scored, descended, strict=True)
                ]
            every += children
            best = {c.key: c for c in (*population, *children)}
            population = sorted(best.values(), key=lambda c: -c.score)[: _SELECTION.parents]
        return every

    def _elite(self, space: Space, model: CostModel, known: Observations) -> list[Candidate]:
        """Return the best measured points with current scores."""
        elite = [c for _, c in known.best[: self.elite] if c.sketch.is_symbolic]
        candidates: list[Candidate] = []
        for sketch, places in by_sketch(elite):
            points = np.array([elite[i].point for i in places], dtype=np.int64)
            candidates += self.scored(space, model, sketch, points, "elite", optimism=self.optimism)
        return candidates

    def _descend(
        self, space: Space, model: CostModel, pool: Sequence[Candidate], known: Observations, rng: np.random.Generator
    ) -> list[Candidate]:
        """Descend from the seeds; return the rounded valid points, best first."""
        amounts = self._amounts(space)
        starts = []
        for sketch, seeds, noisy in self._starts(pool, known, amounts):
            space.deadline.check()
            noise = rng.normal(0.0, self.noise, size=seeds.shape) * noisy[:, None]
            start = Start(space.relaxed(sketch), seeds, noise)
            try:
                start.prepare()
            except (NoSmoothForm, UnsupportedSketch):
                continue  # its points are still sampled and scored by exact formulas
            starts.append(start)
        candidates: list[Candidate] = []
        every = descend(starts, model, amounts.descent, self.corrected_task(space))
        for start, passed in zip(starts, every, strict=True):
            points = np.unique(round_points(start.sketch, passed), axis=0)
            points = points[start.sketch.valid(points)]
            candidates += self.scored(space, model, start.sketch, points, "gradient", optimism=self.optimism)
        return sorted(candidates, key=lambda c: -c.score)

    def _starts(
        self, pool: Sequence[Candidate], known: Observations, amounts: Amounts
    ) -> list[tuple[Sketch, Points, Points]]:
        """Return (sketch, seeds, noise flags) per structure: the best measured points, then the best of the pool."""
        elite = [c for _, c in known.best[: self.elite] if c.sketch.is_symbolic]
        starts: dict[Structure, list[tuple[Candidate, bool]]] = {}
        total = 0
        for candidate, noisy in [*((c, True) for c in elite), *((c, False) for c in pool)]:
            key = structure_of(candidate)
            if key not in starts and len(starts) >= amounts.structures:
                continue
            if total >= amounts.seeds:
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
