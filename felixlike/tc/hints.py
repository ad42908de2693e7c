"""Restrict a search to the schedules nearest to the mapping options.

Input: options, a strategy. Output: a strategy. Meaning of the hints:

    tile           for each output dimension, outermost first: elements within one iteration of the outermost loop
    map_to_blocks  for each output dimension: iterations of its outermost loop, which is shared among cores or blocks
    unroll         unrolled iterations: the schedule's own limit, or the innermost factor of reduction loops
    map_to_threads on a GPU, the threads that share the copying of operands
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from felixlike.costmodel import CostModel
from felixlike.search import Candidate, Measured, Observations, Space, Strategy
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.program.variables import groups
from felixlike.tc.options import Options

_POOL = 4096
"""Points sampled per sketch to find those nearest to the hints. Chosen by hand."""

_SAME = 1e-6
"""Tolerance when distances are compared, in sums of log factors. Chosen by hand."""


class Hinted(Strategy):
    """A strategy that proposes the best candidates by the cost model among those nearest to the hints.

    If no hint applies to a task, the wrapped strategy proposes instead.
    """

    def __init__(self, options: Options, otherwise: Strategy) -> None:
        self.trials_per_round, self.scheduling = otherwise.trials_per_round, otherwise.scheduling
        self.timing = otherwise.timing
        self._options, self._otherwise = options, otherwise
        self._model: CostModel | None = None

    def begin(self, model: CostModel) -> None:
        """Start a search; see `Strategy.begin`."""
        self._model = model
        self._otherwise.begin(model)

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Pass measurements on to the wrapped strategy; see `Strategy.observe`."""
        self._otherwise.observe(space, measured, recalled=recalled)

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Propose candidates; see `Strategy.propose`."""
        candidates: list[Candidate] = []
        hinted = False
        for sketch in space.sketches:
            points = hinted_points(sketch, self._options, int(rng.integers(2**31)))
            hinted = hinted or points is not None
            if points is not None:
                candidates += self._scored(space, sketch, points)
        if not hinted:
            return self._otherwise.propose(space, known, count, rng)
        candidates = [candidate for candidate in candidates if candidate.key not in known.seen]
        return sorted(candidates, key=lambda candidate: -candidate.score)[:count]

    def _scored(self, space: Space, sketch: Sketch, points: Points) -> list[Candidate]:
        """Return points as candidates with scores of the cost model, 0 if it is not trained."""
        features = space.features(sketch, points)
        scores = np.zeros(len(points))
        if features is not None and self._model is not None and self._model.trained:
            scores = np.asarray(self._model.predict(features, space.task.key), dtype=np.float64)
        rows = zip(points.tolist(), scores.tolist(), strict=True)
        return [Candidate(sketch, tuple(point), score, "hinted") for point, score in rows]


def hinted_points(sketch: Sketch, options: Options, seed: int) -> Points | None:
    """Return the sampled points of a sketch nearest to the hints; None if no hint applies."""
    if not sketch.variables:
        return None
    points = np.unique(sketch.sample(_POOL, seed), axis=0)
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
