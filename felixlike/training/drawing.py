"""Candidates to learn from: half at random, half near the best that were measured.

In: a task's sketches and what is known of them. Out: candidates that were not measured before. What a search asks of a
model is the order of good candidates, and random ones are seldom good: so every second one is a cross of two of the
best, tile group by tile group, or one of the best with a group drawn anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from felixlike.errors import InvalidSchedule
from felixlike.search import Candidate, Key, Observations
from felixlike.search.strategy import by_sketch
from felixlike.search.variation import Variation
from felixlike.symbolic import Sketch

_PARENTS = 0.25
"""The share of a space's measured candidates that have offspring."""

_TRIES = 24
"""Draws for one candidate before a sketch is held to be exhausted."""

_SPARE = 64
"""Random valid points at hand for mutations."""

_CROSSED = 0.6
"""The share of offspring with two parents."""


def at_random(sketches: Sequence[Sketch], known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """At most `count` valid candidates that are not known, sketches equally likely; fewer where there are no more."""
    found: dict[Key, Candidate] = {}
    open_ = list(sketches)
    while open_ and len(found) < count:
        share = -(-(count - len(found)) // len(open_))
        for sketch in tuple(open_):
            fresh = _fresh(sketch, known, found, min(share, count - len(found)), rng)
            found.update((candidate.key, candidate) for candidate in fresh)
            if len(fresh) < share:
                open_.remove(sketch)
    return list(found.values())


def _fresh(
    sketch: Sketch, known: Observations, found: dict[Key, Candidate], count: int, rng: np.random.Generator
) -> list[Candidate]:
    fresh: dict[Key, Candidate] = {}
    try:
        points = sketch.sample(max(1, count) * _TRIES, int(rng.integers(2**31)))
    except InvalidSchedule:
        return []
    for point in points.tolist():
        candidate = Candidate(sketch, tuple(point), float("nan"), "random")
        if len(fresh) < count and candidate.key not in known.seen and candidate.key not in found:
            fresh[candidate.key] = candidate
    return list(fresh.values())


def near_best(sketches: Sequence[Sketch], known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """At most `count` valid candidates that are not known, each an offspring of the fastest quarter of those of these
    sketches."""
    keys = {sketch.key for sketch in sketches}
    measured = [candidate for _, candidate in known.best if candidate.sketch.key in keys and candidate.sketch.variables]
    parents = measured[: max(2, round(_PARENTS * len(measured)))]
    if not parents:
        return []
    spare = {
        key: parent.sketch.sample(_SPARE, int(rng.integers(2**31)))
        for key, parent in {parent.sketch.key: parent for parent in parents}.items()
    }
    found: dict[Key, Candidate] = {}
    for _ in range(_TRIES):
        missing = count - len(found)
        if missing <= 0:
            break
        ones = [parents[i] for i in rng.integers(len(parents), size=2 * missing)]
        for sketch, places in by_sketch(ones):
            members = [parent for parent in parents if parent.sketch.key == sketch.key]
            points = np.array([ones[i].point for i in places], dtype=np.int64)
            mates = np.array([members[i].point for i in rng.integers(len(members), size=len(places))], dtype=np.int64)
            drawn = spare[sketch.key][rng.integers(len(spare[sketch.key]), size=len(places))]
            moves = Variation(sketch)
            two = ((rng.random(len(places)) < _CROSSED) & (mates != points).any(axis=1))[:, None]
            children = np.where(two, moves.crossed(points, mates, 0.5, rng), moves.crossed(points, drawn, 0.0, rng))
            for point, good in zip(children.tolist(), sketch.valid(children), strict=True):
                candidate = Candidate(sketch, tuple(point), float("nan"), "near best")
                if good and len(found) < count and candidate.key not in known.seen:
                    found.setdefault(candidate.key, candidate)
    return list(found.values())
