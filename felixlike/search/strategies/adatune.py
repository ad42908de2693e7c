"""Search as AdaTune does (Li et al. 2020): a random forest with uncertainty, and contextual simulated annealing.

Inputs: a space and the task's own measurements. Output: candidates. The surrogate is a random forest (§4.2.1). The mean
µ and the standard deviation σ of its trees give the expected improvement over the best speed p*, equations 1 and 2:

    EI(p) = (µ − p*) Φ(Z) + σ φ(Z),  Z = (µ − p*) / σ;   max(µ − p*, 0) where σ = 0.

Simulated annealing collects the points with the largest EI (§4.2.2). The share ε_t = mean σ / p* of a batch (equation
3) is drawn at random. The paper's third part, timing that stops once the result is certain (§4.1), applies to all
strategies here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.diversity import diverse
from felixlike.search.samples import Sampled, Samples, rows_of_candidates
from felixlike.search.space import Space
from felixlike.search.strategy import Key, Observations, aside, by_sketch, draw
from felixlike.search.variation import Variations

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class AdaTune(Sampled):
    """Propose points by expected improvement of a random forest and contextual simulated annealing.

    Args:
        trees: Trees of the forest.
        chains: Number of annealing chains.
        steps: Steps of each chain.
        hot: Initial temperature relative to the largest expected improvement; it decreases to 0.
        first: Measured candidates of a task before the forest is used.

    Raises:
        InvalidOption: A value is out of range.
    """

    trees: int = 40
    chains: int = 64
    steps: int = 24
    hot: float = 1.0
    first: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        checked(self, trees=2, chains=1, steps=0, hot=0.0, first=2)

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`. They are random before `first` measurements, or for few points."""
        samples = self.samples(space)
        if len(samples.rows) < self.first or not known.best or not space.symbolic or space.size() <= count:
            return draw(space, count, known.seen, rng, origin="random")
        forest = _Forest(samples, self.trees, int(rng.integers(2**31)))
        opaque = aside(space, known, count, rng)
        annealed, spread = self._annealed(space, forest, known, rng)
        explored = round(min(1.0, spread) * (count - len(opaque)))  # p* is 1: speeds are relative to the best
        chosen = diverse(annealed, count - len(opaque) - explored, known.seen | {c.key for c in opaque})
        taken = known.seen | {c.key for c in (*opaque, *chosen)}
        return [*chosen, *opaque, *draw(space, count - len(opaque) - len(chosen), taken, rng, origin="random")]

    def _annealed(
        self, space: Space, forest: _Forest, known: Observations, rng: np.random.Generator
    ) -> tuple[list[Candidate], float]:
        """Return the unmeasured points that the chains visit, scored by their EI, and the mean σ of them."""
        best = [c for _, c in known.best if c.sketch.is_symbolic][: self.chains // 4]
        fresh = draw(space, self.chains - len(best), frozenset(), rng, origin="annealed")
        chains = [c for c in (*best, *fresh) if c.sketch.is_symbolic]
        variations = Variations(space)
        gains, spreads = forest.improvement(space, chains)
        passed: dict[Key, Candidate] = {}
        sigmas: list[float] = []
        for step in range(self.steps + 1):
            for candidate, gain, sigma in zip(chains, gains.tolist(), spreads.tolist(), strict=True):
                if candidate.key not in known.seen and candidate.key not in passed:
                    passed[candidate.key] = Candidate(candidate.sketch, candidate.point, gain, "annealed")
                    sigmas.append(sigma)
            if step == self.steps or not chains:
                break
            moved = _moved(chains, variations, rng)
            moved_gains, moved_spreads = forest.improvement(space, moved)
            temperature = self.hot * max(gains.max(), 1e-9) * (1.0 - step / self.steps)
            accept = rng.random(len(chains)) < np.exp(np.minimum(0.0, (moved_gains - gains) / temperature))
            chains = [there if a else here for here, there, a in zip(chains, moved, accept, strict=True)]
            gains, spreads = np.where(accept, moved_gains, gains), np.where(accept, moved_spreads, spreads)
        return list(passed.values()), float(np.mean(sigmas)) if sigmas else 0.0


def _moved(chains: list[Candidate], variations: Variations, rng: np.random.Generator) -> list[Candidate]:
    """Mutate each candidate; one whose mutation is invalid stays unchanged."""
    moved_chains = list(chains)
    for sketch, places in by_sketch(chains):
        points = np.array([chains[i].point for i in places], dtype=np.int64)
        moved = variations.of(chains[places[0]]).mutated(points, rng)
        for place, point, good in zip(places, moved.tolist(), sketch.valid(moved), strict=True):
            if good:
                moved_chains[place] = Candidate(sketch, tuple(point), math.nan, "annealed")
    return moved_chains


class _Forest:
    """The random forest of one task."""

    def __init__(self, samples: Samples, trees: int, seed: int) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._model: Any = RandomForestRegressor(trees, max_features=0.3, random_state=seed, n_jobs=1)
        self._model.fit(np.stack(samples.rows), samples.speeds())

    def improvement(self, space: Space, candidates: list[Candidate]) -> tuple[Floats, Floats]:
        """Return the expected improvement and σ, float64[n] each; zeros for candidates without formulas."""
        rows = rows_of_candidates(space, candidates)
        known = np.isfinite(rows).all(axis=1) & (rows.shape[1] > 0)
        gains, sigmas = np.zeros(len(candidates)), np.zeros(len(candidates))
        if known.any():
            each = np.stack([tree.tree_.predict(rows[known]).reshape(-1) for tree in self._model.estimators_])
            sigmas[known] = each.std(axis=0)
            gains[known] = expected_improvement(each.mean(axis=0), sigmas[known], 1.0)
        return gains, sigmas


def expected_improvement(mean: Floats, sigma: Floats, best: float) -> Floats:
    """Return E[max(f − best, 0)] of normal distributions, float64[n] (equations 1, 2); max(µ − best, 0) where σ = 0."""
    above = mean - best
    safe = np.where(sigma > 0, sigma, 1.0)
    z = above / safe
    below = 0.5 * (1.0 + np.array([math.erf(x) for x in (z / math.sqrt(2.0)).tolist()]))
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return np.asarray(np.where(sigma > 0, np.maximum(above * below + safe * density, 0.0), np.maximum(above, 0.0)))
