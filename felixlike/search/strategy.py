"""What a strategy is: it proposes candidates of one task, knowing what has been measured.

In: a space, a cost model, what is known. Out: candidates, never one that was measured before.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space

Key = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class Known:
    """What has been measured of one task.  seen: keys of all candidates, failures included.
    best: (seconds, candidate) of those that are right, fastest first."""

    seen: set[Key] = field(default_factory=set)
    best: list[tuple[float, Candidate]] = field(default_factory=list)

    def add(self, candidate: Candidate, seconds: float) -> None:
        """Note a measurement; inf seconds for a failure."""
        self.seen.add(candidate.key)
        if np.isfinite(seconds):
            insort(self.best, (seconds, candidate), key=itemgetter(0))


class Strategy(Protocol):
    """A way to search.  The same seed, model and measurements give the same candidates."""

    def propose(
        self, space: Space, model: CostModel, known: Known, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """At most `count` different candidates that are not in `known.seen`; fewer only where there are no more."""
        ...


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
