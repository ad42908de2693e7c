"""The numbers by which programs are chosen for sizes: how many are ranked and timed, and when a tree is changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """How programs are chosen for sizes. All values are chosen by hand.

    Attributes:
        instances: Sizes for which programs are ranked; the tree covers those between.
        analysed: Sizes by which uKernels are filtered.
        places: Sizes at which programs are timed first; the tree is then timed between them.
        timed: Programs that are timed at a size because they are the best by prediction.
        timed_by_sia: Programs that are timed at a size because FTuner's score ranks them best.
        rounds: Upper limit on rounds of timing the tree.
        lost: The tree is changed where another program is faster by this factor.
        few: Rounds end when the tree loses at no more than this fraction of the timed sizes.
    """

    instances: int = 128
    analysed: int = 32
    places: int = 12
    timed: int = 6
    timed_by_sia: int = 2
    rounds: int = 3
    lost: float = 1.05
    few: float = 0.05


CPU = Selection()

GPU = Selection(timed=4, timed_by_sia=1, rounds=1)
"""Fewer timings, since each program is built, verified and run in a separate process."""
