"""Timings between sizes that are known, of programs that are fast there: what predictions and trees are put right by.

In: predictions, something that times. Out: `Corrected` predictions; a tree that was timed where it may lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from felixlike.dynamic.dispatch import P, Tree, choose, repaired
from felixlike.dynamic.ukernel import Floats

_PLACES = 12
"""Sizes at which programs are timed, before the tree is timed between those."""

_LOST = 1.05
"""Where another program is faster by this, the tree is changed."""

_AGAIN, _FEW = 3, 0.05
"""How often the tree is timed between the sizes that it knows, at most; and the share of those at which it may lose."""

TIMED = 6
"""Programs that are timed at a size, the best by prediction."""


def places_of(count: int) -> list[int]:
    """Those of so many sizes that are timed first: spread evenly, the first and the last among them."""
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
    """The tree, timed at sizes between those that it was fitted on, fitted again with what came of that, and so on
    while it loses at many; and at how many it did.  seconds_of: times programs at sizes.  tree_of: fits one.  rounds:
    at most.  most: programs that are timed at a size, beside the tree's."""
    tree, changed = tree_of(corrected.seconds()), 0
    for _ in range(rounds):
        places = corrected.between()
        seconds = corrected.seconds()
        lost: dict[tuple[int, ...], P] = {}
        for place in places:
            own = programs.index(choose(tree, sizes[place]))
            order = np.argsort(seconds[:, place], kind="stable")[:most]
            tried = [own, *(int(p) for p in order if np.isfinite(seconds[p, place]) and int(p) != own)]
            taken = seconds_of([(programs[p], sizes[place]) for p in tried])
            for program, each in zip(tried, taken, strict=True):
                corrected.note(program, place, float(each))
            if np.isfinite(taken).all() and taken[0] > _LOST * taken.min():
                lost[sizes[place]] = programs[tried[int(taken.argmin())]]
        changed += len(lost)
        tree = repaired(tree_of(corrected.seconds()), lost)
        if len(lost) <= _FEW * len(places):
            break
    return tree, changed


class Corrected:
    """What programs take by prediction, with what was measured in it: float64[programs, instances]."""

    def __init__(self, predicted: Floats) -> None:
        self._predicted = predicted
        self._ratios = np.full(predicted.shape, np.nan)
        self._places: list[int] = []

    def note(self, program: int, place: int, seconds: float) -> None:
        """A measurement; ∞ where there is none after all."""
        if place not in self._places:
            self._places = sorted([*self._places, place])
        if np.isfinite(seconds) and np.isfinite(self._predicted[program, place]):
            self._ratios[program, place] = seconds / self._predicted[program, place]

    def between(self) -> list[int]:
        """Instances in the middle between neighbours that were timed."""
        return [(low + high) // 2 for low, high in pairwise(self._places) if high - low > 1]

    def seconds(self) -> Floats:
        """The matrix; each program's sizes that were not timed are scaled by what its own measurements, or else all,
        say of the nearest one."""
        every = np.arange(self._predicted.shape[1])
        nearest = np.abs(every[:, None] - np.asarray(self._places)[None, :]).argmin(axis=1)
        at_place = self._ratios[:, self._places]
        usual = np.asarray([np.nanmedian(c) if np.isfinite(c).any() else 1.0 for c in at_place.T])
        filled = np.where(np.isfinite(at_place), at_place, np.maximum(usual, 1.0)[None, :])
        found: Floats = self._predicted * filled[:, nearest]
        return found
