"""What a strategy is: it proposes candidates of one task, and is told what they took.

In: a space, what is known of it. Out: candidates, never one that was measured before. Nothing else decides what is
measured: budgets, measuring and records are the same for all of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.symbolic import Sketch

Key = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class Observations:
    """What has been measured of one task.  seen: keys of all candidates, failures included.
    best: (seconds, candidate) of those that are right, fastest first."""

    seen: set[Key] = field(default_factory=set)
    best: list[tuple[float, Candidate]] = field(default_factory=list)

    def add(self, candidate: Candidate, seconds: float) -> None:
        """Note a measurement; inf seconds for a failure."""
        self.seen.add(candidate.key)
        if np.isfinite(seconds):
            insort(self.best, (seconds, candidate), key=itemgetter(0))


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate and what came of it.  seconds: of a call; inf where it failed, or computed something else."""

    candidate: Candidate
    seconds: float


class Strategy:
    """A way to search. Subclasses override `propose`, and `observe` and `begin` where they learn something.

    One strategy serves all tasks of a run, each with a space of its own. The same seed, model and measurements give
    the same candidates. What it raises ends the search of that task, with a warning, and costs nothing measured."""

    def begin(self, model: CostModel) -> None:
        """A run begins: forget what the last one taught.  model: the run's cost model, shared by its tasks, for
        strategies that have none of their own; `observe` is what teaches it."""

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """At most `count` different candidates that are not in `known.seen`; fewer only where there are no more.

        May raise OutOfTime where `space.deadline` has passed: the search of the task is over then."""
        raise NotImplementedError

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """What was measured of a task, in the order of measuring; each candidate once.

        recalled: from a store, all at once, before the first round; else what the last round brought."""


def draw(space: Space, count: int, seen: AbstractSet[Key], rng: np.random.Generator, *, origin: str) -> list[Candidate]:
    """Random valid candidates, sketches equally likely, none of them seen; fewer where there are no more."""
    found: dict[Key, Candidate] = {}
    if not space.sketches:
        return []
    for _ in range(8):  # small spaces give the same points again and again
        missing = count - len(found)
        if missing <= 0:
            break
        shares = np.bincount(rng.integers(len(space.sketches), size=2 * missing), minlength=len(space.sketches))
        fresh: list[Candidate] = []
        for sketch, share in zip(space.sketches, shares, strict=True):
            if share:
                points = sketch.sample(int(share), int(rng.integers(2**31)))
                fresh += [Candidate(sketch, tuple(p), float("nan"), origin) for p in points.tolist()]
        for i in rng.permutation(len(fresh)):
            if fresh[i].key not in seen and len(found) < count:
                found.setdefault(fresh[i].key, fresh[i])
    return list(found.values())


def aside(space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """The part of a batch that goes to sketches that can only be sampled, since no formula tells anything of them:
    their share of the sketches, half if one of them leads, an eighth once they have fallen behind."""
    if not space.opaque or not count:
        return []
    share = len(space.opaque) / len(space.sketches)
    if known.best:
        leads = not known.best[0][1].sketch.understood
        share = max(share, 0.5) if leads else min(share, 0.125)
    wanted = max(1, round(share * count))
    found: dict[Key, Candidate] = {}
    for _ in range(4 * wanted):
        if len(found) >= wanted:
            break
        sketch = space.opaque[int(rng.integers(len(space.opaque)))]
        point = tuple(sketch.sample(1, int(rng.integers(2**31)))[0].tolist())
        candidate = Candidate(sketch, point, float("nan"), "sampled")
        if candidate.key not in known.seen:
            found[candidate.key] = candidate
    return list(found.values())


def by_sketch(candidates: Sequence[Candidate]) -> list[tuple[Sketch, list[int]]]:
    """(sketch, places of its candidates), in the order of first appearance: features differ in shape by sketch."""
    found: dict[str, tuple[Sketch, list[int]]] = {}
    for place, candidate in enumerate(candidates):
        found.setdefault(candidate.sketch.key, (candidate.sketch, []))[1].append(place)
    return list(found.values())
