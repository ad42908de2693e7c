"""Search by likelihood-free Bayesian optimization with pattern search (Song et al. 2022; used by Helion).

Inputs: a space and the task's own measurements. Output: candidates. A random forest learns to classify measured points
as among the best or not, with weights that grow with the improvement. The predicted probability of "among the best" is
the acquisition function. It is evaluated on the neighbours of the best points, a few moves away from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.diversity import diverse
from felixlike.search.samples import Sampled, Samples, rows_of_candidates
from felixlike.search.space import Space
from felixlike.search.strategy import Key, Observations, aside, draw
from felixlike.search.variation import Variations


@dataclass(eq=False)
class LFBO(Sampled):
    """Propose neighbours of the best points that a classifier ranks highest.

    Args:
        quantile: Share of the measured points that are labelled as the best, 0 to 1.
        copies: Number of best points whose neighbours are evaluated.
        neighbours: Neighbours generated per point.
        radius: Maximum number of moves from a point to a neighbour.
        trees: Trees of the forest.
        explore: Share of a batch that is random, 0 to 1.
        first: Measured candidates of a task before the forest is used.

    Raises:
        InvalidOption: A value is out of range.
    """

    quantile: float = 0.2
    copies: int = 5
    neighbours: int = 100
    radius: int = 2
    trees: int = 100
    explore: float = 0.1
    first: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (0.0, 1.0)
        checked(self, quantile=shares, copies=1, neighbours=1, radius=1, trees=2, explore=shares, first=2)

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`. They are random before `first` measurements, or for few points."""
        samples = self.samples(space)
        if len(samples.rows) < self.first or not known.best or not space.symbolic or space.size() <= count:
            return draw(space, count, known.seen, rng, origin="random")
        opaque = aside(space, known, count, rng)
        near = self._neighbours(space, known, rng)
        chances = self._chances(space, samples, near, int(rng.integers(2**31)))
        scored = [Candidate(c.sketch, c.point, s, c.origin) for c, s in zip(near, chances, strict=True)]
        number = count - len(opaque) - round(self.explore * (count - len(opaque)))
        chosen = diverse(scored, number, known.seen | {c.key for c in opaque})
        taken = known.seen | {c.key for c in (*opaque, *chosen)}
        return [*chosen, *opaque, *draw(space, count - len(opaque) - len(chosen), taken, rng, origin="random")]

    def _neighbours(self, space: Space, known: Observations, rng: np.random.Generator) -> list[Candidate]:
        """Return unmeasured points, each at most `radius` moves from one of the best."""
        candidates: dict[Key, Candidate] = {}
        variations = Variations(space)
        for _, centre in [pair for pair in known.best if pair[1].sketch.is_symbolic][: self.copies]:
            points = np.tile(np.array(centre.point, dtype=np.int64), (self.neighbours, 1))
            moves = rng.integers(1, self.radius + 1, size=(self.neighbours, 1))
            for move in range(self.radius):
                points = np.where(moves > move, variations.of(centre).mutated(points, rng), points)
            for point, good in zip(points.tolist(), centre.sketch.valid(points), strict=True):
                candidate = Candidate(centre.sketch, tuple(point), float("nan"), "neighbour")
                if good and candidate.key not in known.seen:
                    candidates.setdefault(candidate.key, candidate)
        return list(candidates.values())

    def _chances(self, space: Space, samples: Samples, candidates: list[Candidate], seed: int) -> list[float]:
        """Return each candidate's probability of being among the best, by a forest trained on all measurements."""
        from sklearn.ensemble import RandomForestClassifier

        if not candidates:
            return []
        speeds = samples.speeds()
        limit = np.quantile(speeds, 1.0 - self.quantile)
        good = (speeds >= limit) & (speeds > 0)
        better = np.where(good, speeds - limit + 1e-3, 0.0)  # weights as in expected improvement
        weights = np.where(good, better / better.sum() * len(speeds), 1.0)
        forest: Any = RandomForestClassifier(self.trees, min_samples_leaf=1, random_state=seed, n_jobs=1)
        forest.fit(np.stack(samples.rows), good, sample_weight=weights)
        rows = rows_of_candidates(space, candidates)
        if good.all() or not rows.shape[1]:
            return [0.0] * len(candidates)
        chances: list[float] = forest.predict_proba(np.nan_to_num(rows))[:, 1].tolist()
        return chances
