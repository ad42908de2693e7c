"""Random search: valid points, drawn. The baseline every other strategy has to beat."""

from __future__ import annotations

import numpy as np

from felixlike.costmodel import CostModel
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.search.strategy import Known, draw


class RandomSearch:
    """Proposes random valid points."""

    def propose(
        self, space: Space, model: CostModel, known: Known, count: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """See `Strategy.propose`; the model is not asked."""
        return draw(space, count, known.seen, rng, origin="random")
