"""Reject points whose GPU source would compile too slowly.

Input: the structures of a sketch. Output: `SourceLimits`, which evaluates the formula of `program/source_size.py`,
built once for each combination of compute locations.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from felixlike.errors import UnsupportedSketch
from felixlike.hardware import kind_of
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.program.source_size import source_characters
from felixlike.symbolic.replay.points import Points, by_columns, values_of
from felixlike.symbolic.replay.structure_cache import StructureCache

LONGEST_SOURCE = 250_000
"""Limit on the CUDA source of a candidate, in characters as the formula predicts them.

Measured on an H100: of the candidates with more than 160,000 actual characters, which took 3 s and more of a core, 69 %
are above the limit; of the five best candidates of each workload, 4 % are.
"""


class SourceLimits:
    """Predict the source length of a sketch's points.

    Args:
        structures: The sketch's structures.
    """

    def __init__(self, structures: StructureCache) -> None:
        self._structures = structures
        self._graphs: dict[tuple[int, ...], Graph | None] = {}

    def short(self, points: Points) -> npt.NDArray[np.bool_]:
        """Return which points have short enough source according to the formula; all on CPUs.

        Args:
            points: int64[n, variables].

        Returns:
            bool[n].
        """
        good = np.ones(len(points), dtype=bool)
        scheduler = self._structures.scheduler
        if not self._structures.reason and kind_of(scheduler.task.target).binds_threads:
            for locations, rows in by_columns(points, self._structures.columns):
                graph = self._graph(locations)
                if graph is not None:
                    characters = graph.evaluate(values_of(points[rows], scheduler.variables), len(rows))[:, 0]
                    good[rows] = characters <= LONGEST_SOURCE
        return good

    def _graph(self, locations: tuple[int, ...]) -> Graph | None:
        """Return the formula of these compute locations; None if they have no symbolic program."""
        if locations not in self._graphs:
            structure = self._structures.unprobed(locations)
            characters = None if isinstance(structure, UnsupportedSketch) else source_characters(structure.program)
            self._graphs[locations] = None if characters is None else Graph([characters])
        return self._graphs[locations]
