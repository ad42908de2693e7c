"""Which points of a sketch have source that a GPU's compiler takes in bearable time.

In: a sketch. Out: `SourceLimits`, which asks the formula of `program/source_size.py`, once made for each combination of
compute locations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from felixlike.errors import UnsupportedSketch
from felixlike.hardware import kind_of
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.program.source_size import source_characters
from felixlike.symbolic.replay.points import Points

if TYPE_CHECKING:
    from felixlike.symbolic.replay.sketch import Sketch

LONGEST_SOURCE = 250_000
"""Characters of CUDA source by formula beyond which candidates are not tried. On an H100, 69 % of those that really had
over 160,000, and so took 3 s and more of a core, are above, and 4 % of the five best of each workload."""


class SourceLimits:
    """How long the source of a sketch's points is."""

    def __init__(self, sketch: Sketch) -> None:
        self._sketch = sketch
        self._graphs: dict[tuple[int, ...], Graph | None] = {}

    def short(self, points: Points) -> npt.NDArray[np.bool_]:
        """bool[n]: for which of int64[n, variables] it is short enough, as far as formulas tell; all on CPUs."""
        good = np.ones(len(points), dtype=bool)
        if self._sketch.understood and kind_of(self._sketch.task.target).binds_threads:
            for locations, rows in self._sketch.by_structure(points):
                graph = self._graph(locations)
                if graph is not None:
                    characters = graph.evaluate(self._sketch.values(points[rows]), len(rows))[:, 0]
                    good[rows] = characters <= LONGEST_SOURCE
        return good

    def _graph(self, locations: tuple[int, ...]) -> Graph | None:
        """The formula; None where blocks at these places are not understood."""
        if locations not in self._graphs:
            found = self._sketch.unprobed(locations)
            told = None if isinstance(found, UnsupportedSketch) else source_characters(found.program)
            self._graphs[locations] = None if told is None else Graph([told])
        return self._graphs[locations]
