"""Gradient search: seeds, descent, rounding, exact re-ranking, a diverse choice (Felix §3.4, Algorithm 1, improved).

In: a space, a cost model, what is known. Out: candidates. Seeds are the best of many random valid points by the exact
formulas and the best points measured so far; every point passed on the way down is rounded to exact factors, checked
against the constraints, scored by the exact formulas, and never proposed twice. A share of each batch is drawn at
random, and sketches that are not understood symbolically get theirs by sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.errors import UnsupportedSketch
from felixlike.search.candidate import Candidate
from felixlike.search.descent import Descent, descend
from felixlike.search.rounding import round_points
from felixlike.search.space import Space
from felixlike.search.strategy import Key, Known, draw
from felixlike.smooth import NoSmoothForm
from felixlike.symbolic import Kind, Points, Sketch


@dataclass(frozen=True, slots=True)
class GradientOptions:
    """pool: random points scored before descending.  paths: most combinations of compute locations drawn for each
    sketch in a round.  seeds: starts of the descent.  structures: most different (sketch, compute locations) among the
    seeds.  elite: best measured points among the seeds.  noise: standard deviation of what is added to the elite's
    start, in log units.  explore: share of a batch drawn at random.  optimism: how many standard deviations of the
    ensemble are added to a score when choosing."""

    pool: int = 256
    paths: int = 3
    seeds: int = 32
    structures: int = 5
    elite: int = 8
    noise: float = 0.3
    explore: float = 0.125
    optimism: float = 0.5
    descent: Descent = field(default_factory=Descent)


class GradientSearch:
    """Proposes points that the cost model's gradient leads to."""

    def __init__(self, options: GradientOptions | None = None) -> None:
        self.options = options if options is not None else GradientOptions()

    def propose(
        self, space: Space, model: CostModel, known: Known, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """See `Strategy.propose`. Without a model that knows anything, and for few points, this is random search."""
        if not space.understood or not model.trained or space.size() <= count:
            return draw(space, count, known.seen, rng, origin="random")
        aside = self._aside(space, known, count)
        pool = self._pool(space, model, rng)
        drawn = [*self._sampled(space, known, aside, rng), *self._explored(pool, known, count - aside, rng)]
        taken = known.seen | {c.key for c in drawn}
        descended = self._descend(space, model, pool, known, rng)
        chosen = _diverse([*descended, *pool], count - len(drawn), taken)
        missing = count - len(drawn) - len(chosen)
        more = draw(space, missing, taken | {c.key for c in chosen}, rng, origin="random") if missing else []
        return [*chosen, *drawn, *more]

    def _aside(self, space: Space, known: Known, count: int) -> int:
        """How much of a batch goes to sketches that can only be sampled: their share of the sketches, half if one of
        them leads, an eighth once they have fallen behind."""
        if not space.opaque:
            return 0
        share = len(space.opaque) / len(space.sketches)
        if known.best:
            leads = not known.best[0][1].sketch.understood
            share = max(share, 0.5) if leads else min(share, 0.125)
        return max(1, round(share * count))

    def _sampled(self, space: Space, known: Known, count: int, rng: np.random.Generator) -> list[Candidate]:
        found: dict[Key, Candidate] = {}
        for _ in range(4 * count):
            if len(found) >= count:
                break
            sketch = space.opaque[int(rng.integers(len(space.opaque)))]
            point = tuple(sketch.sample(1, int(rng.integers(2**31)))[0].tolist())
            candidate = Candidate(sketch, point, float("nan"), "sampled")
            if candidate.key not in known.seen:
                found[candidate.key] = candidate
        return list(found.values())

    def _explored(
        self, pool: Sequence[Candidate], known: Known, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """Some of the pool whatever their score."""
        wanted = round(self.options.explore * count)
        fresh = [c for c in pool if c.key not in known.seen]
        return [fresh[i] for i in rng.permutation(len(fresh))[:wanted]]

    def _pool(self, space: Space, model: CostModel, rng: np.random.Generator) -> list[Candidate]:
        """Random valid points of understood sketches, scored, best first; of few structures, since each costs."""
        found: list[Candidate] = []
        share = max(1, self.options.pool // len(space.understood))
        for sketch in space.understood:
            points = sketch.sample(share, int(rng.integers(2**31)), paths=self.options.paths)
            found += self._scored(space, model, sketch, np.unique(points, axis=0), "random")
        return sorted(found, key=lambda c: -c.score)

    def _scored(self, space: Space, model: CostModel, sketch: Sketch, points: Points, origin: str) -> list[Candidate]:
        features = space.features(sketch, points) if len(points) else None
        if features is None:
            return []
        if origin == "random":
            model.anchor(space.task.key, features)
        mean, spread = model.predict_with_spread(features)
        scores = mean + self.options.optimism * spread
        return [Candidate(sketch, tuple(p), float(s), origin) for p, s in zip(points.tolist(), scores, strict=True)]

    def _descend(
        self, space: Space, model: CostModel, pool: Sequence[Candidate], known: Known, rng: np.random.Generator
    ) -> list[Candidate]:
        found: list[Candidate] = []
        for sketch, seeds, noisy in self._starts(pool, known):
            noise = rng.normal(0.0, self.options.noise, size=seeds.shape) * noisy[:, None]
            try:
                passed = descend(space.relaxed(sketch), model, sketch, seeds, noise=noise, options=self.options.descent)
            except (NoSmoothForm, UnsupportedSketch):
                continue  # its points are still scored exactly, and drawn
            points = np.unique(round_points(sketch, passed), axis=0)
            found += self._scored(space, model, sketch, points[sketch.valid(points)], "gradient")
        return sorted(found, key=lambda c: -c.score)

    def _starts(self, pool: Sequence[Candidate], known: Known) -> list[tuple[Sketch, Points, Points]]:
        """(sketch, seeds, whether to add noise) by structure: the best measured points, then the best of the pool."""
        options = self.options
        elite = [c for _, c in known.best[: options.elite] if c.sketch.understood]
        starts: dict[tuple[str, tuple[int, ...]], list[tuple[Candidate, bool]]] = {}
        total = 0
        for candidate, noisy in [*((c, True) for c in elite), *((c, False) for c in pool)]:
            key = candidate.sketch.key, _locations(candidate)
            if key not in starts and len(starts) >= options.structures:
                continue
            if total >= options.seeds:
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


def _locations(candidate: Candidate) -> tuple[int, ...]:
    return tuple(candidate.point[i] for i in candidate.sketch.location_columns)


_APART = 0.5
"""Candidates of one batch differ by more than this, summed over log factors, while there are such."""


def _diverse(candidates: Sequence[Candidate], count: int, taken: set[Key]) -> list[Candidate]:
    """The best by score, first those that differ from each other, then any."""
    best: dict[Key, Candidate] = {}
    for candidate in candidates:
        if candidate.key not in taken and candidate.key not in best:
            best[candidate.key] = candidate
    ordered = sorted(best.values(), key=lambda c: -c.score)
    chosen: list[Candidate] = []
    positions: list[tuple[str, np.ndarray]] = []
    for candidate in ordered:
        if len(chosen) >= count:
            break
        here = _position(candidate)
        near = any(key == candidate.sketch.key and np.abs(here - p).sum() <= _APART for key, p in positions)
        if not near:
            chosen.append(candidate)
            positions.append((candidate.sketch.key, here))
    picked = {c.key for c in chosen}
    rest = [c for c in ordered if c.key not in picked]
    return [*chosen, *rest[: count - len(chosen)]]


def _position(candidate: Candidate) -> np.ndarray:
    """Logarithms of the tile factors; locations and unroll steps count as far apart."""
    kinds = [v.kind for v in candidate.sketch.variables]
    return np.array(
        [np.log(x) if kind is Kind.TILE else float(x) for kind, x in zip(kinds, candidate.point, strict=True)]
    )
