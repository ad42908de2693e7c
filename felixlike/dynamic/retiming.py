"""Correct predictions and trees with timings of the fastest programs between known sizes.

Input: predictions, a function that times programs. Output: `Corrected` predictions; a tree that was timed where it may
lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from felixlike.dynamic.dispatch import P, Tree, choose, repaired
from felixlike.dynamic.ukernel import Floats

_PLACES = 12
"""Sizes at which programs are timed first; the tree is then timed between them. Chosen by hand."""

_LOST = 1.05
"""The tree is changed where another program is faster by this factor. Chosen by hand."""

_AGAIN, _FEW = 3, 0.05
"""Upper limit on rounds of timing the tree; the fraction of timed sizes at which it may lose. Chosen by hand."""

TIMED = 6
"""Programs that are timed at a size, the best by prediction. Chosen by hand."""


def places_of(count: int) -> list[int]:
    """Return the indices of the sizes that are timed first: evenly spread, including the first and the last."""
    return sorted({int(place) for place in np.linspace(0, count - 1, _PLACES).round()})


def timed_again(
    seconds_of: Callable[[list[tuple[P, tuple[int, ...]]]], Floats],
    programs: Sequence[P],
    corrected: Corrected,
    sizes: Sequence[tuple[int, ...]],
    tree_of: Callable[[Floats], Tree[P]],
    *,
    rounds: int = _AGAIN,
    most: int = TIMED,
) -> tuple[Tree[P], int]:
    """Time the tree between the sizes that it was fitted on and fit it again, while it loses at many; return it.

    Args:
        seconds_of: Times programs at sizes.
        programs: The programs.
        corrected: Predictions with the timings so far; new timings are added.
        sizes: Sizes of each instance, one per symbol.
        tree_of: Fits a tree to a matrix of seconds.
        rounds: Upper limit on rounds.
        most: Programs that are timed at a size, besides the tree's.

    Returns:
        The tree, and the number of sizes at which it lost.
    """
    tree, changed = tree_of(corrected.seconds()), 0
    for _ in range(rounds):
        places = corrected.between()
        seconds = corrected.seconds()
        lost: dict[tuple[int, ...], P] = {}
        for place in places:
            chosen = programs.index(choose(tree, sizes[place]))
            order = np.argsort(seconds[:, place], kind="stable")[:most]
            candidates = [chosen, *(int(p) for p in order if np.isfinite(seconds[p, place]) and int(p) != chosen)]
            measured = seconds_of([(programs[p], sizes[place]) for p in candidates])
            for program, each in zip(candidates, measured, strict=True):
                corrected.note(program, place, float(each))
            if np.isfinite(measured).all() and measured[0] > _LOST * measured.min():
                lost[sizes[place]] = programs[candidates[int(measured.argmin())]]
        changed += len(lost)
        tree = repaired(tree_of(corrected.seconds()), lost)
        if len(lost) <= _FEW * len(places):
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
