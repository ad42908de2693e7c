"""Implement what strategies with the run's cost model share: training and scoring.

Inputs: a space, points and measurements. Output: scored candidates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from felixlike._util.spent import on
from felixlike.costmodel import CostModel
from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.space import Space
from felixlike.search.strategy import Configurable, Measured, by_sketch
from felixlike.symbolic import Points, Sketch

_ENOUGH = 32
"""Number of new measurements of other tasks after which the model is trained again: four rounds. A training takes as
long as building two candidates. Chosen by hand."""


@dataclass(eq=False, kw_only=True)
class ModelGuided(Configurable):
    """Base class of strategies that use the run's cost model.

    Args:
        trees: Whether the model's boosted trees contribute half of a score. Without them, the networks predict alone.
        correction: Whether a task's own measurements correct its scores at once, by a Gaussian process. Without the
            correction, the networks are trained on them before the next round instead.
        trials_per_round: As for `Strategy`.
        scheduling: As for `Strategy`.
        timing: As for `Strategy`.
    """

    trees: bool = True
    correction: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checked(self, trees=bool, correction=bool)

    def begin(self, model: CostModel) -> None:
        """Start a run with its cost model; see `Strategy.begin`."""
        self._model: CostModel | None = model
        self._fresh: Counter[str] = Counter()

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Add measurements to the model's data, failures as the slowest; see `Strategy.observe`.

        Training happens later, when the model is used."""
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
        """Return the run's cost model; None before a run."""
        return getattr(self, "_model", None)

    @on("learning")
    def _learn(self, space: Space) -> None:
        """Train the model if enough measurements are new.

        For a pretrained model with the correction only other tasks' measurements count: `CostModel.remember` applies a
        task's own ones at once."""
        if self._model is None:
            return
        corrected = self._model.pretrained and self.correction
        same_task, total = self._fresh[space.task.key], self._fresh.total()
        if (same_task > 1 and not corrected) or total - same_task * corrected >= _ENOUGH:
            self._fresh.clear()
            self._model.refresh(space.task.key)

    def knows(self, space: Space, count: int) -> CostModel | None:
        """Return the updated model; None if it is untrained or cannot score, or the space has only `count` points."""
        model = self.model
        if model is None or not space.symbolic or space.size() <= count:
            return None
        self._learn(space)
        return model if model.trained else None

    def corrected_task(self, space: Space) -> str | None:
        """Return the key of the task whose measurements correct scores; None without the correction."""
        return space.task.key if self.correction else None

    @on("ranking")
    def scored(
        self, space: Space, model: CostModel, sketch: Sketch, points: Points, origin: str, *, optimism: float = 0.0
    ) -> list[Candidate]:
        """Score points by the exact formulas.

        Args:
            space: The task's search space.
            model: The cost model.
            sketch: The sketch.
            points: int64[n, variables].
            origin: `Candidate.origin` of the result.
            optimism: Number of standard deviations added to the predicted mean.

        Returns:
            One candidate per point; none if the sketch has no formulas.

        Raises:
            OutOfTime: The run's deadline has passed.
        """
        space.deadline.check()
        features = space.features(sketch, points) if len(points) else None
        if features is None:
            return []
        if origin == "random":
            model.anchor(space.task.key, features)
        mean, spread = model.predict_with_spread(features, self.corrected_task(space), trees=self.trees)
        scores = mean + optimism * spread
        return [
            Candidate(sketch, tuple(p), s if math.isfinite(s) else -math.inf, origin)
            for p, s in zip(points.tolist(), scores.tolist(), strict=True)
        ]
