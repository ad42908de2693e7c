"""Draw training candidates: random ones, and ones near the best measured candidates.

The input is a task's sketches and their measurements. The output is candidates that were not measured before. A search
needs the order of good candidates, and random ones are rarely good. A candidate near the best is a crossover of two of
the best, tile group by tile group, or a mutation of one, in which one group is random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from felixlike.errors import InvalidSchedule
from felixlike.search import Candidate, Key, Observations
from felixlike.search.strategy import by_sketch
from felixlike.search.variation import Variation
from felixlike.symbolic import Sketch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drawing:
    """How candidates are drawn. All values are chosen by hand.

    Attributes:
        parents: Share of a space's measured candidates that may be parents, 0 to 1.
        tries: Draws per candidate after which a sketch counts as exhausted.
        spare: Number of random valid points for mutations.
        crossed: Probability that a child has two parents, where these differ.
    """

    parents: float = 0.25
    tries: int = 24
    spare: int = 64
    crossed: float = 0.6


_DRAWING = Drawing()


def in_shares(count: int, parts: Sequence[T], draw: Callable[[T, int], list[Candidate]]) -> list[Candidate]:
    """Return up to `count` candidates, equally many of each part. The last parts may make up for the first ones."""
    candidates: list[Candidate] = []
    for place, part in enumerate(parts):
        candidates += draw(part, (count - len(candidates)) // (len(parts) - place))
    return candidates


def at_random(sketches: Sequence[Sketch], known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """Return up to `count` random valid candidates that were not measured, sketches equally likely."""
    drawn: dict[Key, Candidate] = {}
    remaining = list(sketches)
    while remaining and len(drawn) < count:
        share = -(-(count - len(drawn)) // len(remaining))
        for sketch in tuple(remaining):
            fresh = _fresh(sketch, known, drawn, min(share, count - len(drawn)), rng)
            drawn.update((candidate.key, candidate) for candidate in fresh)
            if len(fresh) < share:
                remaining.remove(sketch)
    return list(drawn.values())


def _fresh(
    sketch: Sketch, known: Observations, drawn: dict[Key, Candidate], count: int, rng: np.random.Generator
) -> list[Candidate]:
    """Return up to `count` random valid candidates of one sketch that are in neither `known` nor `drawn`."""
    fresh: dict[Key, Candidate] = {}
    try:
        points = sketch.sample(max(1, count) * _DRAWING.tries, int(rng.integers(2**31)))
    except InvalidSchedule:
        return []
    for point in points.tolist():
        candidate = Candidate(sketch, tuple(point), float("nan"), "random")
        if len(fresh) < count and candidate.key not in known.seen and candidate.key not in drawn:
            fresh[candidate.key] = candidate
    return list(fresh.values())


def near_best(sketches: Sequence[Sketch], known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """Return up to `count` valid candidates that were not measured, children of these sketches' fastest quarter."""
    keys = {sketch.key for sketch in sketches}
    measured = [candidate for _, candidate in known.best if candidate.sketch.key in keys and candidate.sketch.variables]
    parents = measured[: max(2, round(_DRAWING.parents * len(measured)))]
    if not parents:
        return []
    spare = {
        key: parent.sketch.sample(_DRAWING.spare, int(rng.integers(2**31)))
        for key, parent in {parent.sketch.key: parent for parent in parents}.items()
    }
    candidates: dict[Key, Candidate] = {}
    for _ in range(_DRAWING.tries):
        missing = count - len(candidates)
        if missing <= 0:
            break
        first_parents = [parents[i] for i in rng.integers(len(parents), size=2 * missing)]
        for sketch, places in by_sketch(first_parents):
            members = [parent for parent in parents if parent.sketch.key == sketch.key]
            points = np.array([first_parents[i].point for i in places], dtype=np.int64)
            mates = np.array([members[i].point for i in rng.integers(len(members), size=len(places))], dtype=np.int64)
            drawn = spare[sketch.key][rng.integers(len(spare[sketch.key]), size=len(places))]
            moves = Variation(sketch)
            has_two_parents = ((rng.random(len(places)) < _DRAWING.crossed) & (mates != points).any(axis=1))[:, None]
            children = np.where(
                has_two_parents, moves.crossed(points, mates, 0.5, rng), moves.crossed(points, drawn, 0.0, rng)
            )
            for point, is_valid in zip(children.tolist(), sketch.valid(children), strict=True):
                candidate = Candidate(sketch, tuple(point), float("nan"), "near best")
                if is_valid and len(candidates) < count and candidate.key not in known.seen:
                    candidates.setdefault(candidate.key, candidate)
    return list(candidates.values())
