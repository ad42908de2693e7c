"""Construct programs of uKernels and choose one for each size by score, without a measurement (FTuner §V).

Input: SIA scores of uKernels at each size. Output: programs of one or two uKernels that cover the main axis exactly
(algorithm 2), and the best of each size (eq. 1). uKernels of one program have equal widths, since one launch or one
panel of columns has one width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from felixlike.dynamic.combine import Combination, combin_search
from felixlike.dynamic.dispatch import P, Tree, fit
from felixlike.dynamic.program import Program
from felixlike.dynamic.stages import Stage
from felixlike.dynamic.ukernel import Floats, Workload


@dataclass(frozen=True, slots=True)
class Constructed(Generic[P]):
    """The program of each size.

    Attributes:
        chosen: One program per size.
        programs: Number of constructed programs, all sizes together.
        uncovered: Number of sizes that no program covers exactly.
    """

    chosen: tuple[P, ...]
    programs: int
    uncovered: int

    def tree(self, sizes: Sequence[Sequence[int]], weights: Sequence[float]) -> Tree[P]:
        """Fit the decision tree that reproduces the choice."""
        programs = list(dict.fromkeys(self.chosen))
        return fit(sizes, [programs.index(program) for program in self.chosen], weights, programs)

    def stage(self, kernels: int) -> Stage:
        """Return the counts of the construction as a stage. kernels: Number of uKernels in all chosen programs."""
        return Stage("CombinSearch", kernels, self.programs, self.uncovered)


def best_of(size: int, scores: Mapping[int, float]) -> tuple[float, Combination | None, int]:
    """Return the best score of a program, its combination, and how many programs there are.

    A pair has the mean of both scores. Of equal scores the fewest tiles are chosen. Without an exact cover the
    combination is None.

    Args:
        size: H, the size of the main axis.
        scores: Scores by heights.
    """
    combinations = combin_search(size, scores)
    rated = [
        ((scores[c.large] + scores[c.small]) / 2 if c.few else scores[c.large], -c.tiles, number)
        for number, c in enumerate(combinations)
    ]
    if not rated:
        return -np.inf, None, 0
    score, _, number = max(rated)
    return score, combinations[number], len(combinations)


def tile_programs(
    scores: Mapping[tuple[int, int], Floats], workloads: Sequence[Workload], lanes: int, *, one_width: bool
) -> Constructed[Program]:
    """Choose programs of register tiles.

    Sizes that no program covers exactly get the tile with the best score and tiles of neighbouring heights.

    Args:
        scores: Scores of each register tile (i, j) at each workload, −∞ where the filter dropped it (`tile_scores`).
        workloads: The operator at each size.
        lanes: Elements of a vector.
        one_width: Whether all sizes share one width, since a constant is packed for it: the one with the best scores.
    """
    choices = {width: _of_width(width, scores, workloads, lanes) for width in sorted({j for _, j in scores})}
    if one_width:
        weights = np.asarray([w.weight for w in workloads])
        totals = {width: float(np.asarray([s for s, _ in c.chosen]) @ weights) for width, c in choices.items()}
        best = max(totals, key=lambda width: totals[width])
        choices = {best: choices[best]}
    chosen, uncovered = [], 0
    for place in range(len(workloads)):
        covering = [c for c in choices.values() if place not in c.uncovered] or list(choices.values())
        uncovered += all(place in c.uncovered for c in choices.values())
        chosen.append(max((c.chosen[place] for c in covering), key=lambda rated: rated[0])[1])
    return Constructed(tuple(chosen), sum(c.programs for c in choices.values()), uncovered)


@dataclass(frozen=True, slots=True)
class _Choices:
    """The programs of one width: score and program of each size, their number, sizes without an exact cover."""

    chosen: list[tuple[float, Program]]
    programs: int
    uncovered: set[int]


def _of_width(
    width: int, scores: Mapping[tuple[int, int], Floats], workloads: Sequence[Workload], lanes: int
) -> _Choices:
    """Return the choices among programs of one width, in elements."""
    heights = {i: row for (i, j), row in scores.items() if j == width}
    likely = max(heights, key=lambda i: float(np.where(np.isfinite(heights[i]), heights[i], 0.0).sum()))
    chosen: list[tuple[float, Program]] = []
    programs, uncovered = 0, set[int]()
    for place, workload in enumerate(workloads):
        at_place = {i: float(row[place]) for i, row in heights.items() if np.isfinite(row[place])}
        score, combination, count = best_of(workload.i, at_place)
        programs += count
        if combination is None:
            height = max(at_place, key=lambda i: at_place[i]) if at_place else likely
            uncovered.add(place)
            chosen.append((at_place.get(height, 0.0), Program(height, 0, width // lanes)))
        else:
            small = combination.small if combination.few else combination.large
            chosen.append((score, Program(combination.large, small, width // lanes)))
    return _Choices(chosen, programs, uncovered)
