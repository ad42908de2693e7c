"""Search by a genetic algorithm without a cost model, as Tensor Comprehensions does (Vasilache et al. 2018, §5.3).

Inputs: a space and observations. Output: candidates. The fastest measured points are the population. Parents are drawn
with probability proportional to their speed. A child takes each group of variables from one of two parents, and may be
mutated. The fastest points remain parents in all later rounds (elites). `TensorComprehensions` is the search of the
original, with its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.space import Space
from felixlike.search.strategy import Configurable, Key, Measured, Observations, aside, draw
from felixlike.search.variation import Variation, Variations
from felixlike.symbolic import Points

_TRIES = 16
"""Maximum number of attempts to breed a batch; missing candidates are then drawn at random. Chosen by hand."""

_FEWEST_PARENTS = 3
"""Points that have to work for a generation to be bred from them; else it is random, as in the original."""

Timed = tuple[float, Candidate]
"""Seconds per call of a candidate, and the candidate."""


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
        candidates |= self._brood(space, known.best[: self.population], known, count - missing - len(opaque), rng)
        taken = known.seen | candidates.keys()
        return [*candidates.values(), *draw(space, count - len(candidates), taken, rng, origin="random")]

    def _brood(
        self, space: Space, population: Sequence[Timed], known: Observations, count: int, rng: np.random.Generator
    ) -> dict[Key, Candidate]:
        """Return up to `count` new children of a population."""
        parents = [(s, c) for s, c in population if c.sketch.is_symbolic]
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
                alike = [(s, c) for s, c in parents if c.sketch.key == one.sketch.key]
                point = self._child(one, alike, variations.of(one), rng)
                child = Candidate(one.sketch, tuple(point[0].tolist()), float("nan"), "bred")
                if child.key not in known.seen and child.key not in candidates and one.sketch.valid(point)[0]:
                    candidates[child.key] = child
        return candidates

    def _child(self, one: Candidate, alike: Sequence[Timed], moves: Variation, rng: np.random.Generator) -> Points:
        """Return a child of one parent and another one of the same sketch, as int64[1, variables]."""
        mates = [c for _, c in alike if c is not one]
        point = np.array([one.point], dtype=np.int64)
        if not mates or rng.random() >= self.crossover:
            return moves.mutated(point, rng)
        other = np.array([mates[int(rng.integers(len(mates)))].point], dtype=np.int64)
        point = moves.crossed(point, other, 0.5, rng)
        return moves.mutated(point, rng) if rng.random() < self.mutation else point


@dataclass(eq=False)
class TensorComprehensions(Genetic):
    """Breed generations as the autotuner of Tensor Comprehensions does, with its numbers.

    The first generation is random. Each later one has the fastest points of the one before (elites), which are not
    measured again, and children of it. Three parents, drawn with probability proportional to their speed, give a child
    each of its groups of variables with equal probability. Then each group is replaced by a random one with probability
    `mutation`. A round that spans two generations breeds the second from those that are measured so far.

    Args:
        population: Number of points of a generation.
        crossover: Share of children with three parents, 0 to 1. The others are copies of one.
        mutation: Probability of replacing a group of variables, 0 to 1.
        elites: Number of fastest points that stay in the next generation, less than `population`.
        generations: Number of generations. The search of a task ends after the last one: after 2260 candidates.

    Raises:
        InvalidOption: A value is out of range.
    """

    population: int = 100
    crossover: float = 0.8
    mutation: float = 0.07
    elites: int = 10
    generations: int = 25
    _measured: dict[str, list[Timed]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked(self, elites=0, generations=1)
        checked(self, population=self.elites + 1)

    def begin(self, model: CostModel) -> None:
        """Start a run; see `Strategy.begin`."""
        self._measured = {}

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Add measurements to the generations of their task; see `Strategy.observe`."""
        self._measured.setdefault(space.task.key, []).extend((m.seconds, m.candidate) for m in measured)

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`. None are left after the last generation."""
        measured = self._measured.get(space.task.key, [])
        candidates: dict[Key, Candidate] = {}
        total = self.population + (self.generations - 1) * (self.population - self.elites)
        end = min(len(measured) + count, total)
        while (place := len(measured) + len(candidates)) < end:
            generation = self._generation(place)
            part = min(end, self._starts(generation + 1)) - place
            seen = Observations(known.seen | candidates.keys(), known.best)
            fresh = self._of_generation(space, generation, measured, seen, part, rng)
            candidates |= {candidate.key: candidate for candidate in fresh}
            if len(fresh) < part:  # a small space has no more
                break
        return list(candidates.values())

    def _of_generation(
        self,
        space: Space,
        generation: int,
        measured: Sequence[Timed],
        known: Observations,
        count: int,
        rng: np.random.Generator,
    ) -> list[Candidate]:
        """Return new points of a generation."""
        parents = self._population(generation - 1, measured) if generation else []
        candidates: dict[Key, Candidate] = {}
        if len(parents) >= _FEWEST_PARENTS:
            candidates = {c.key: c for c in aside(space, known, count, rng)}
            candidates |= self._brood(space, parents, known, count - len(candidates), rng)
        taken = known.seen | candidates.keys()
        return [*candidates.values(), *draw(space, count - len(candidates), taken, rng, origin="random")]

    def _starts(self, generation: int) -> int:
        """Return the number of points that are measured before a generation."""
        return generation and self.population + (generation - 1) * (self.population - self.elites)

    def _generation(self, place: int) -> int:
        """Return the number of the generation, from 0, of the point that is measured after `place` others."""
        return max(0, 1 + (place - self.population) // (self.population - self.elites))

    def _population(self, generation: int, measured: Sequence[Timed]) -> list[Timed]:
        """Return the points of a generation that work, elites included, fastest first."""
        population: list[Timed] = []
        for number in range(generation + 1):
            fresh = [(s, c) for s, c in measured[self._starts(number) : self._starts(number + 1)] if np.isfinite(s)]
            population = sorted([*population[: self.elites], *fresh], key=lambda timed: timed[0])
        return population

    def _child(self, one: Candidate, alike: Sequence[Timed], moves: Variation, rng: np.random.Generator) -> Points:
        """Return a child of three parents of the same sketch, or a copy of one, mutated."""
        point = np.array([one.point], dtype=np.int64)
        fresh = one.sketch.sample(1, int(rng.integers(2**31)))[0]
        parents = [one]
        if rng.random() < self.crossover:
            speeds = 1.0 / np.array([seconds for seconds, _ in alike])
            parents += [alike[i][1] for i in rng.choice(len(alike), size=2, p=speeds / speeds.sum())]
        for columns in moves.columns:
            point[0, columns] = np.array(parents[int(rng.integers(len(parents)))].point)[columns]
            if rng.random() < self.mutation:
                point[0, columns] = fresh[columns]
        return point
