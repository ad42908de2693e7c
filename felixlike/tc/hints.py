"""Restrict a search to the schedules nearest to the mapping options, or start it from them.

Input: options, a strategy. Output: a strategy. Meaning of the hints:

    tile           for each output dimension, outermost first: elements within one iteration of the outermost loop
    map_to_blocks  for each output dimension: iterations of its outermost loop, which is shared among cores or blocks
    unroll         unrolled iterations: the schedule's own limit, or the innermost factor of reduction loops
    map_to_threads on a GPU, the threads that share the copying of operands
    memory         on a GPU, whether schedules have buffers in shared and private memory, and how large
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from felixlike.costmodel import CostModel
from felixlike.features import NAMES
from felixlike.search import Candidate, Key, Measured, Observations, Space, Strategy
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.program.variables import groups
from felixlike.tc.options import Options

_POOL = 4096
"""Points sampled per sketch to find those nearest to the hints. Chosen by hand."""

_SEEDS = 8
"""Candidates of a task that are measured for each of the options to start from. Chosen by hand."""

_SAME = 1e-6
"""Tolerance when distances are compared, in sums of log factors. Chosen by hand."""


class _Wrapping(Strategy):
    """A strategy with the rounds and the timing of another one, which learns from all measurements."""

    def __init__(self, otherwise: Strategy) -> None:
        self.trials_per_round, self.scheduling = otherwise.trials_per_round, otherwise.scheduling
        self.timing = otherwise.timing
        self._otherwise = otherwise
        self._model: CostModel | None = None

    def begin(self, model: CostModel) -> None:
        """Start a search; see `Strategy.begin`."""
        self._model = model
        self._otherwise.begin(model)

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Pass measurements on to the wrapped strategy; see `Strategy.observe`."""
        self._otherwise.observe(space, measured, recalled=recalled)


class Hinted(_Wrapping):
    """A strategy that proposes the best candidates by the cost model among those nearest to the hints.

    If no hint applies to a task, the wrapped strategy proposes instead.
    """

    def __init__(self, options: Options, otherwise: Strategy) -> None:
        super().__init__(otherwise)
        self._options = options

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Propose candidates; see `Strategy.propose`."""
        pools = hinted_pools(space, self._options, int(rng.integers(2**31)))
        if not pools:
            return self._otherwise.propose(space, known, count, rng)
        candidates = _scored(space, self._model, pools, "hinted")
        return [candidate for candidate in candidates if candidate.key not in known.seen][:count]


class Seeded(_Wrapping):
    """A strategy whose first candidates are the best by the cost model among those nearest to options to start from.

    All others are those of the wrapped strategy, which is told how fast the first ones are.
    """

    def __init__(self, starts: Sequence[Options], otherwise: Strategy) -> None:
        super().__init__(otherwise)
        self._starts = starts

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Propose candidates; see `Strategy.propose`."""
        seeds: dict[Key, Candidate] = {}
        for start in self._starts:
            # The same points in every round, so that those that were measured count, also in an earlier run.
            candidates = _scored(space, self._model, hinted_pools(space, start, 0), "seed")
            missing = _SEEDS - sum(candidate.key in known.seen for candidate in candidates)
            fresh = [candidate for candidate in candidates if candidate.key not in known.seen]
            seeds |= {candidate.key: candidate for candidate in fresh[: max(0, missing)]}
        first = list(seeds.values())[:count]
        if len(first) == count:
            return first
        seen = Observations(known.seen | {candidate.key for candidate in first}, known.best)
        return [*first, *self._otherwise.propose(space, seen, count - len(first), rng)]


def _scored(
    space: Space, model: CostModel | None, pools: Sequence[tuple[Sketch, Points]], origin: str
) -> list[Candidate]:
    """Return points as candidates, best first by the cost model; scores are 0 if it is not trained."""
    candidates: list[Candidate] = []
    for sketch, points in pools:
        features = space.features(sketch, points)
        scores = np.zeros(len(points))
        if features is not None and model is not None and model.trained:
            scores = np.asarray(model.predict(features, space.task.key), dtype=np.float64)
        rows = zip(points.tolist(), scores.tolist(), strict=True)
        candidates += [Candidate(sketch, tuple(point), score, origin) for point, score in rows]
    return sorted(candidates, key=lambda candidate: -candidate.score)


def hinted_pools(space: Space, options: Options, seed: int) -> list[tuple[Sketch, Points]]:
    """Return the sampled points of each sketch that are nearest to the hints; none if no hint applies.

    Hints about memory choose among sketches and points, if any have what they request.
    """
    samples = [(s, np.unique(s.sample(_POOL, seed), axis=0)) for s in space.sketches if s.variables]
    fitting = [(s, points[_fits_memory(space, s, points, options)]) for s, points in samples] if options.memory else []
    fitting = [(sketch, points) for sketch, points in fitting if len(points)]
    pools = [(sketch, points, nearest_points(sketch, options, points)) for sketch, points in fitting or samples]
    return [(s, points if near is None else near) for s, points, near in pools if near is not None or fitting]


def _fits_memory(space: Space, sketch: Sketch, points: Points, options: Options) -> npt.NDArray[np.bool_]:
    """Return for each point whether its memory is as the hints request."""
    features = space.features(sketch, points)
    if features is None:
        return np.zeros(len(points), dtype=np.bool_)
    fits = np.ones(len(points), dtype=np.bool_)
    for column, used in (("shared_bytes", options.shared), ("local_bytes", options.private)):
        if used is not None:
            fits &= (features[:, :, NAMES.index(column)].max(axis=1) > 0) == used
    if options.shared_bytes is not None:
        fits &= features[:, :, NAMES.index("shared_bytes")].max(axis=1) <= options.shared_bytes
    return fits


def nearest_points(sketch: Sketch, options: Options, points: Points) -> Points | None:
    """Return the points of a sketch nearest to the hints; None if no hint applies."""
    distances = list(_distances(sketch, options, points))
    if not distances:
        return None
    total = np.sum(distances, axis=0)
    nearest: Points = points[total <= total.min() + _SAME]
    return nearest


def _distances(sketch: Sketch, options: Options, points: Points) -> Iterator[npt.NDArray[np.float64]]:
    """Yield for each hint that applies the distance of all points, as absolute log factors."""
    shape = [int(extent) for extent in sketch.task.module["main"].params[-1].shape]
    limits = [column for column, variable in enumerate(sketch.variables) if variable.kind is Kind.UNROLL]
    for column, variable in enumerate(sketch.variables):
        if variable.kind is Kind.UNROLL and options.unrolled is not None:
            yield np.abs(np.log1p(points[:, column]) - np.log1p(options.unrolled))
        elif variable.kind is Kind.THREADS and options.threads:
            yield np.abs(np.log(points[:, column] / np.prod(options.threads)))
    for _, columns in groups(sketch.variables):
        first = sketch.variables[columns[0]]
        if first.kind is not Kind.TILE or first.group is None:
            continue
        name = first.group.name
        dimension = int(name[1:]) if name[:1] == "i" and name[1:].isdecimal() else None
        outermost, inner = points[:, columns[0]], np.prod(points[:, columns[1:]], axis=1)
        if dimension is not None and dimension < min(len(options.tiles), len(shape)):
            lanes = max(1, round(shape[dimension] / first.group.product))  # vectorized dimensions are tiled by vectors
            yield np.abs(np.log(inner * lanes / options.tiles[dimension]))
        if dimension is not None and dimension < len(options.blocks):
            yield np.abs(np.log(outermost / options.blocks[dimension]))
        if dimension is None and options.unrolled is not None and not limits and len(columns) > 1:
            yield np.abs(np.log(points[:, columns[-1]] / options.unrolled))
