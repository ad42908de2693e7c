"""Draw training candidates by a search strategy: what a search would measure next.

Inputs: a task's search space, its measurements, a strategy and weights. Output: candidates that were not measured. A
model is least accurate where a search that follows it goes, and random candidates are rarely there. Measured and
learned from, such candidates correct it (Ross et al. 2011, dataset aggregation). Our own design space and
MetaSchedule's are searched separately, because candidates of the first are usually faster, and a search of both would
leave the other out.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from felixlike import costmodel
from felixlike.hardware import kind_of, target_device
from felixlike.search import Candidate, Observations, Space, Strategy
from felixlike.search.strategy import Measured
from felixlike.symbolic import Sketch, is_own
from felixlike.training.drawing import in_shares


class Searches:
    """Searches of one task, one in each design space.

    Args:
        space: The task's search space. Its non-symbolic sketches are left out, since they have no features.
        strategy: The strategy; every search has a copy.
        weights: Path of the cost model's weights; None for the shipped ones.
        known: The task's measurements.

    Raises:
        InvalidWeights: The weights cannot be read, or are for other features.
    """

    def __init__(self, space: Space, strategy: Strategy, weights: str | Path | None, known: Observations) -> None:
        parts = [space.part(kind) for kind in (_is_own, _is_metaschedules)]
        self._searches = [(part, copy.deepcopy(strategy)) for part in parts if part.sketches]
        target = space.task.target
        for _, search in self._searches:
            search.begin(costmodel.load(kind_of(target).device, weights, device=target_device(target)))
        self.observe([Measured(candidate, seconds) for seconds, candidate in known.best], recalled=True)

    def propose(self, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return at most `count` candidates that are not in `known`, equally many of each design space."""

        def proposed(of_space: tuple[Space, Strategy], share: int) -> list[Candidate]:
            part, search = of_space
            best = [(seconds, candidate) for seconds, candidate in known.best if _has(part, candidate)]
            return search.propose(part, Observations(known.seen, best), share, rng)

        return in_shares(count, self._searches, proposed)

    def observe(self, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Let each search learn from the measurements of its design space."""
        for part, search in self._searches:
            search.observe(part, [m for m in measured if _has(part, m.candidate)], recalled=recalled)


def _has(space: Space, candidate: Candidate) -> bool:
    return any(sketch.key == candidate.sketch.key for sketch in space.sketches)


def _is_own(sketch: Sketch) -> bool:
    return sketch.is_symbolic and is_own(sketch)


def _is_metaschedules(sketch: Sketch) -> bool:
    return sketch.is_symbolic and not is_own(sketch)
