"""Candidates to learn from: half at random, half near the best that were measured.

In: a task's sketches and what is known of them. Out: candidates that were not measured before. What a search asks of a
model is the order of good candidates, and random ones are seldom good: so every second one is a cross of two of the
best, tile group by tile group, or one of the best with a group drawn anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from felixlike.errors import InvalidSchedule
from felixlike.search import Candidate, Key, Known
from felixlike.symbolic import Sketch
from felixlike.symbolic.program.variables import groups

_PARENTS = 0.25
"""The share of a space's measured candidates that have offspring."""

_TRIES = 24
"""Draws for one candidate before a sketch is held to be exhausted."""

_SPARE = 64
"""Random valid points at hand for mutations."""

_CROSSED = 0.6
"""The share of offspring with two parents."""


def at_random(sketches: Sequence[Sketch], known: Known, count: int, rng: np.random.Generator) -> list[Candidate]:
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
    sketch: Sketch, known: Known, found: dict[Key, Candidate], count: int, rng: np.random.Generator
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


def near_best(sketches: Sequence[Sketch], known: Known, count: int, rng: np.random.Generator) -> list[Candidate]:
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
        children: dict[str, tuple[Sketch, list[list[int]]]] = {}
        for _ in range(2 * (count - len(found))):
            one = parents[int(rng.integers(len(parents)))]
            others = [p for p in parents if p.sketch.key == one.sketch.key and p is not one]
            if others and rng.random() < _CROSSED:
                child = _crossed(one, others[int(rng.integers(len(others)))].point, 0.5, rng)
            else:
                drawn = spare[one.sketch.key]
                child = _crossed(one, drawn[int(rng.integers(len(drawn)))].tolist(), 0.0, rng)
            children.setdefault(one.sketch.key, (one.sketch, []))[1].append(child)
        for sketch, points in children.values():
            good = sketch.valid(np.array(points, dtype=np.int64))
            for point in (p for p, right in zip(points, good, strict=True) if right):
                candidate = Candidate(sketch, tuple(point), float("nan"), "near best")
                if len(found) < count and candidate.key not in known.seen:
                    found.setdefault(candidate.key, candidate)
        if len(found) >= count:
            break
    return list(found.values())


def _crossed(one: Candidate, other: Sequence[int], share: float, rng: np.random.Generator) -> list[int]:
    """One's point with some groups of variables of another's: this share of them, at least one."""
    columns = [members for _, members in groups(one.sketch.variables)]
    taken = rng.random(len(columns)) < share
    taken[int(rng.integers(len(columns)))] = True
    child = list(one.point)
    for members, here in zip(columns, taken, strict=True):
        for column in members if here else ():
            child[column] = other[column]
    return child
