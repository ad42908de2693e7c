"""Strategies that ask the run's cost model: what they share.

In: a space, points. Out: scored candidates; and a model that has learned what was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.search.strategy import Measured, Strategy, by_sketch
from felixlike.symbolic import Points, Sketch

_ENOUGH = 8
"""New measurements of other tasks that are worth a training."""


class ModelGuided(Strategy):
    """A strategy that goes by the cost model of the run."""

    def begin(self, model: CostModel) -> None:
        """See `Strategy.begin`."""
        self._model: CostModel | None = model
        self._fresh: Counter[str] = Counter()

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """The model remembers all that is measured; failures teach too, as slowest. It is trained when it is asked."""
        model = self.model
        if model is None:
            return
        for sketch, places in by_sketch([m.candidate for m in measured]):
            points = np.array([measured[i].candidate.point for i in places], dtype=np.int64)
            features = space.features(sketch, points)
            if features is not None:
                model.remember(space.task.key, features, [measured[i].seconds for i in places])
                self._fresh[space.task.key] += 0 if recalled else len(places)

    @property
    def model(self) -> CostModel | None:
        """The run's cost model; None before a run."""
        return getattr(self, "_model", None)

    def _learn(self, space: Space) -> None:
        """Train on what was measured since the last time, if it is enough to matter to this task. Its own measurements
        correct what a pretrained model says at once, so that is about others'."""
        if self._model is None:
            return
        own, total = self._fresh[space.task.key], self._fresh.total()
        if (own > 1 and not self._model.pretrained) or total - own * self._model.pretrained >= _ENOUGH:
            self._fresh.clear()
            self._model.refresh(space.task.key)

    def knows(self, space: Space, count: int) -> CostModel | None:
        """The model, where it has something to say of a space with more points than are wanted."""
        model = self.model
        if model is None or not space.understood or space.size() <= count:
            return None
        self._learn(space)
        return model if model.trained else None

    def scored(
        self, space: Space, model: CostModel, sketch: Sketch, points: Points, origin: str, *, optimism: float = 0.0
    ) -> list[Candidate]:
        """Candidates with their predicted score, by the exact formulas; none where there are no formulas.

        optimism: how many standard deviations are added.  Raises OutOfTime."""
        space.deadline.check()
        features = space.features(sketch, points) if len(points) else None
        if features is None:
            return []
        if origin == "random":
            model.anchor(space.task.key, features)
        mean, spread = model.predict_with_spread(features, space.task.key)
        scores = mean + optimism * spread
        return [
            Candidate(sketch, tuple(p), s if math.isfinite(s) else -math.inf, origin)
            for p, s in zip(points.tolist(), scores.tolist(), strict=True)
        ]
