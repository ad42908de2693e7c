"""Correct predictions and trees with timings of the fastest programs between known sizes.

Input: predictions, a function that times programs. Output: `Corrected` predictions; a tree that was timed where it may
lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from felixlike.dynamic.dispatch import P, Tree, choose, repaired
from felixlike.dynamic.selection import Selection
from felixlike.dynamic.ukernel import Floats


def places_of(count: int, places: int) -> list[int]:
    """Return the indices of the sizes that are timed first: evenly spread, including the first and the last."""
    return sorted({int(place) for place in np.linspace(0, count - 1, places).round()})


def timed_again(
    seconds_of: Callable[[list[tuple[P, tuple[int, ...]]]], Floats],
    programs: Sequence[P],
    corrected: Corrected,
    sizes: Sequence[tuple[int, ...]],
    tree_of: Callable[[Floats], Tree[P]],
    selection: Selection,
) -> tuple[Tree[P], int]:
    """Time the tree between the sizes that it was fitted on and fit it again, while it loses at many; return it.

    Args:
        seconds_of: Times programs at sizes.
        programs: The programs.
        corrected: Predictions with the timings so far; new timings are added.
        sizes: Sizes of each instance, one per symbol.
        tree_of: Fits a tree to a matrix of seconds.
        selection: How many rounds, how many programs at a size besides the tree's, and where the tree has lost.

    Returns:
        The tree, and the number of sizes at which it lost.
    """
    tree, changed = tree_of(corrected.seconds()), 0
    for _ in range(selection.rounds):
        places = corrected.between()
        seconds = corrected.seconds()
        lost: dict[tuple[int, ...], P] = {}
        for place in places:
            chosen = programs.index(choose(tree, sizes[place]))
            order = np.argsort(seconds[:, place], kind="stable")[: selection.again]
            candidates = [chosen, *(int(p) for p in order if np.isfinite(seconds[p, place]) and int(p) != chosen)]
            measured = seconds_of([(programs[p], sizes[place]) for p in candidates])
            for program, each in zip(candidates, measured, strict=True):
                corrected.note(program, place, float(each))
            if np.isfinite(measured).all() and measured[0] > selection.lost * measured.min():
                lost[sizes[place]] = programs[candidates[int(measured.argmin())]]
        changed += len(lost)
        tree = repaired(tree_of(corrected.seconds()), lost)
        if len(lost) <= selection.few * len(places):
            break
    return tree, changed


class Corrected:
    """Predicted seconds of programs, corrected by measurements: float64[programs, instances]."""

    def __init__(self, predicted: Floats) -> None:
        self._predicted = predicted
        self._ratios = np.full(predicted.shape, np.nan)
        self._places: list[int] = []

    def note(self, program: int, place: int, seconds: float) -> None:
        """Add a measurement; infinite ones only mark the instance as timed."""
        if place not in self._places:
            self._places = sorted([*self._places, place])
        if np.isfinite(seconds) and np.isfinite(self._predicted[program, place]):
            self._ratios[program, place] = seconds / self._predicted[program, place]

    def between(self) -> list[int]:
        """Return the instances midway between neighbouring timed ones."""
        return [(low + high) // 2 for low, high in pairwise(self._places) if high - low > 1]

    def seconds(self) -> Floats:
        """Return the corrected matrix.

        Instances that were not timed are scaled by the ratio of the nearest timed one: the program's own ratio, or else
        the median of all programs, at least 1.
        """
        every = np.arange(self._predicted.shape[1])
        nearest = np.abs(every[:, None] - np.asarray(self._places)[None, :]).argmin(axis=1)
        at_place = self._ratios[:, self._places]
        median_ratios = np.asarray([np.nanmedian(c) if np.isfinite(c).any() else 1.0 for c in at_place.T])
        filled = np.where(np.isfinite(at_place), at_place, np.maximum(median_ratios, 1.0)[None, :])
        corrected: Floats = self._predicted * filled[:, nearest]
        return corrected
