"""Search as AdaTune does (Li et al. 2020): a random forest with uncertainty, and contextual simulated annealing.

Inputs: a space and the task's own measurements. Output: candidates. The surrogate is a random forest (§4.2.1). The mean
µ and the standard deviation σ of its trees give the expected improvement over the best speed p*, equations 1 and 2:

    EI(p) = (µ − p*) Φ(Z) + σ φ(Z),  Z = (µ − p*) / σ;   max(µ − p*, 0) where σ = 0.

Simulated annealing collects the points with the largest EI (§4.2.2). The share ε_t = mean σ / p* of a batch (equation
3) is drawn at random, with the mean over K random plans that have not been measured (algorithm 1, lines 6 and 7). The
paper's third part, timing that stops once the result is certain (§4.1), applies to all strategies here.

Options replace each part alone by that of AutoTVM, the paper's baseline: boosted trees without a variance, a fixed ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike._util import option_checks
from felixlike.costmodel import CostModel
from felixlike.costmodel.summary import Rows
from felixlike.errors import InvalidOption, MissingDependency
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
        trees: Trees of the forest, or of the boosted model.
        chains: Number of annealing chains.
        steps: Largest number of steps of each chain.
        patience: Chains stop after this number of steps that have not changed the best unmeasured points, as many as
            a batch has; None for all steps. AutoTVM's is 50.
        persistent: Whether chains start where those of the task's last batch ended, as in AutoTVM, and not at random
            points and the best measured ones. A run that resumes from a store starts them anew.
        hot: Initial temperature relative to the largest expected improvement; it decreases to 0.
        first: Measured candidates of a task before the surrogate is used.
        surrogate: "forest", or "xgboost": boosted trees, which give no variance, so that predicted speeds replace the
            expected improvement. The latter requires the package xgboost.
        epsilon: Share of a batch that is random, 0 to 1. None for the contextual one, ε_t.
        plans: K, the number of random plans whose mean σ gives ε_t.
        jackknife: Whether σ is the error of the forest's mean by the infinitesimal jackknife, as in the package
            forestci that the authors use, and not the standard deviation of its trees. It is 0 for the other surrogate.
        trials_per_round: As for `Strategy`.
        scheduling: As for `Strategy`.
        timing: As for `Strategy`. `felixlike.measure.EVALUATORS` has the paper's evaluators.

    Raises:
        InvalidOption: A value is out of range, or the surrogate gives no variance and `epsilon` is None.
        MissingDependency: xgboost is not installed.
    """

    trees: int = 40
    chains: int = 64
    steps: int = 24
    patience: int | None = None
    persistent: bool = False
    hot: float = 1.0
    first: int = 8
    surrogate: str = "forest"
    epsilon: float | None = None
    plans: int = 64
    jackknife: bool = False
    _ends: dict[str, list[Candidate]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked(self, trees=2, chains=1, steps=0, hot=0.0, first=2, plans=1)
        if self.patience is not None:
            checked(self, patience=1)
        option_checks.one_of(self.surrogate, "surrogate", ("forest", "xgboost"), what="a surrogate")
        if self.epsilon is not None:
            checked(self, epsilon=(0.0, 1.0))
        if self.surrogate == "xgboost":
            if self.epsilon is None:
                raise InvalidOption(
                    "a contextual ε needs the variance of a random forest, which xgboost does not give",
                    where="AdaTune",
                    remedy='set epsilon, for example to 0.05, or surrogate="forest"',
                )
            try:
                import xgboost  # noqa: F401
            except ImportError as error:
                raise MissingDependency(
                    "xgboost", where="strategy adatune with this surrogate", remedy="pip install xgboost"
                ) from error

    def begin(self, model: CostModel) -> None:
        """Forget all samples and chains; the run's model is not used."""
        super().begin(model)
        self._ends.clear()

    def _surrogate(self, samples: Samples, seed: int) -> _Surrogate:
        """Return a model that has learned the samples."""
        if self.surrogate == "forest":
            return _Forest(samples, self.trees, seed, jackknife=self.jackknife)
        return _Boosted(samples, self.trees, seed)

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`. They are random before `first` measurements, or for few points."""
        samples = self.samples(space)
        if len(samples.rows) < self.first or not known.best or not space.symbolic or space.size() <= count:
            return draw(space, count, known.seen, rng, origin="random")
        surrogate = self._surrogate(samples, int(rng.integers(2**31)))
        opaque = aside(space, known, count, rng)
        annealed = self._annealed(space, surrogate, known, count, rng)
        explored = round(self._share_of_random(space, surrogate, known, rng) * (count - len(opaque)))
        chosen = diverse(annealed, count - len(opaque) - explored, known.seen | {c.key for c in opaque})
        taken = known.seen | {c.key for c in (*opaque, *chosen)}
        return [*chosen, *opaque, *draw(space, count - len(opaque) - len(chosen), taken, rng, origin="random")]

    def _share_of_random(
        self, space: Space, surrogate: _Surrogate, known: Observations, rng: np.random.Generator
    ) -> float:
        """Return ε, or ε_t: the mean σ of K random unmeasured plans (equation 3), at most 1.

        p* is 1, since speeds are relative to the best."""
        if self.epsilon is not None:
            return self.epsilon
        own = rng.spawn(1)[0]  # so that the batch itself is the same whatever gives ε
        plans = [c for c in draw(space, self.plans, known.seen, own, origin="plan") if c.sketch.is_symbolic]
        _, sigmas = surrogate.improvement(space, plans)
        return min(1.0, float(sigmas.mean())) if len(sigmas) else 0.0

    def _annealed(
        self, space: Space, surrogate: _Surrogate, known: Observations, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """Return the unmeasured points that the chains visit, scored by their EI."""
        chains = self._starts(space, known, rng)
        variations = Variations(space)
        gains, _ = surrogate.improvement(space, chains)
        passed: dict[Key, Candidate] = {}
        leaders: list[float] = []  # gains of the best unmeasured points so far, ascending
        stale = 0
        for step in range(self.steps + 1):
            for candidate, gain in zip(chains, gains.tolist(), strict=True):
                if candidate.key not in known.seen and candidate.key not in passed:
                    passed[candidate.key] = Candidate(candidate.sketch, candidate.point, gain, "annealed")
                    if len(leaders) < count or gain > leaders[0]:
                        (heappush if len(leaders) < count else heappushpop)(leaders, gain)
                        stale = -1
            stale += 1
            if step == self.steps or not chains or stale == self.patience:
                break
            moved = _moved(chains, variations, rng)
            moved_gains, _ = surrogate.improvement(space, moved)
            temperature = self.hot * max(gains.max(), 1e-9) * (1.0 - step / self.steps)
            accept = rng.random(len(chains)) < np.exp(np.minimum(0.0, (moved_gains - gains) / temperature))
            chains = [there if a else here for here, there, a in zip(chains, moved, accept, strict=True)]
            gains = np.where(accept, moved_gains, gains)
        if self.persistent:
            self._ends[space.task.key] = chains
        return list(passed.values())

    def _starts(self, space: Space, known: Observations, rng: np.random.Generator) -> list[Candidate]:
        """Return where the chains of a batch start."""
        if self.persistent and (ends := self._ends.get(space.task.key)):
            return ends
        best = [c for _, c in known.best if c.sketch.is_symbolic][: self.chains // 4]
        fresh = draw(space, self.chains - len(best), frozenset(), rng, origin="annealed")
        return [c for c in (*best, *fresh) if c.sketch.is_symbolic]


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


class _Surrogate:
    """A model of one task's speeds, relative to the best."""

    def improvement(self, space: Space, candidates: list[Candidate]) -> tuple[Floats, Floats]:
        """Return the expected improvement and σ, float64[n] each; zeros for candidates without formulas."""
        rows = rows_of_candidates(space, candidates)
        known = np.isfinite(rows).all(axis=1) & (rows.shape[1] > 0)
        gains, sigmas = np.zeros(len(candidates)), np.zeros(len(candidates))
        if known.any():
            gains[known], sigmas[known] = self._of_rows(rows[known])
        return gains, sigmas

    def _of_rows(self, rows: Rows) -> tuple[Floats, Floats]:
        """Return the expected improvement and σ, float64[n] each, for float32[n, width]."""
        raise NotImplementedError


class _Forest(_Surrogate):
    """A random forest, with expected improvement over the best."""

    def __init__(self, samples: Samples, trees: int, seed: int, *, jackknife: bool) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._model: Any = RandomForestRegressor(trees, max_features=0.3, random_state=seed, n_jobs=1)
        self._model.fit(np.stack(samples.rows), samples.speeds())
        self._counts: Floats | None = None
        if jackknife:
            size = len(samples.rows)
            self._counts = np.array([np.bincount(some, minlength=size) for some in self._model.estimators_samples_])

    def _of_rows(self, rows: Rows) -> tuple[Floats, Floats]:
        """See `_Surrogate`; µ and σ are those of the trees."""
        each = np.stack([tree.tree_.predict(rows).reshape(-1) for tree in self._model.estimators_])
        sigmas = each.std(axis=0) if self._counts is None else jackknife_error(each, self._counts)
        return expected_improvement(each.mean(axis=0), sigmas, 1.0), sigmas


class _Boosted(_Surrogate):
    """Boosted trees with AutoTVM's depth and step size, without a variance."""

    def __init__(self, samples: Samples, trees: int, seed: int) -> None:
        from xgboost import XGBRegressor

        self._model: Any = XGBRegressor(
            n_estimators=trees, max_depth=3, learning_rate=0.3, gamma=1e-4, min_child_weight=1, seed=seed, n_jobs=1
        )
        self._model.fit(np.stack(samples.rows), samples.speeds())

    def _of_rows(self, rows: Rows) -> tuple[Floats, Floats]:
        """See `_Surrogate`; the predicted speeds take the place of the improvement, as in AutoTVM."""
        speeds = np.asarray(self._model.predict(rows), dtype=np.float64)
        return speeds, np.zeros(len(speeds))


def jackknife_error(each: Floats, counts: Floats) -> Floats:
    """Return the standard error of the mean of bootstrapped trees (Wager, Hastie, Efron 2014, equations 5 and 7).

    Args:
        each: float64[trees, n], what each tree predicts.
        counts: float64[trees, samples], how often each sample is in a tree's bootstrap.

    Returns:
        float64[n]: the root of the infinitesimal jackknife Σ cov(count, prediction)² less its bias from the number of
        trees; 0 where the bias is larger.
    """
    trees, samples = counts.shape
    centred = each - each.mean(axis=0)
    covariance = (counts - counts.mean(axis=0)).T @ centred / trees
    bias = samples * (centred**2).sum(axis=0) / trees**2
    return np.asarray(np.sqrt(np.maximum((covariance**2).sum(axis=0) - bias, 0.0)))


def expected_improvement(mean: Floats, sigma: Floats, best: float) -> Floats:
    """Return E[max(f − best, 0)] of normal distributions, float64[n] (equations 1, 2); max(µ − best, 0) where σ = 0."""
    above = mean - best
    safe = np.where(sigma > 0, sigma, 1.0)
    z = above / safe
    below = 0.5 * (1.0 + np.array([math.erf(x) for x in (z / math.sqrt(2.0)).tolist()]))
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return np.asarray(np.where(sigma > 0, np.maximum(above * below + safe * density, 0.0), np.maximum(above, 0.0)))
