"""Search at random, as a baseline for the other strategies."""

from __future__ import annotations

import numpy as np

from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.search.strategy import Configurable, Observations, draw


class Random(Configurable):
    """Propose random valid points."""

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return random candidates; see `Strategy.propose`."""
        return draw(space, count, known.seen, rng, origin="random")
