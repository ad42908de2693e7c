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
        near: Pools are dropped that are predicted to take longer than the best one by this factor.
        timed: Programs that are timed at a size because they are the best by prediction.
        timed_by_sia: Programs that are timed at a size because FTuner's score ranks them best.
        rounds: Upper limit on rounds of timing the tree.
        again: Programs that are timed in a round because they are the best by prediction, besides the tree's.
        lost: The tree is changed where another program is faster by this factor.
        few: Rounds end when the tree loses at no more than this fraction of the timed sizes.
    """

    instances: int = 128
    analysed: int = 32
    places: int = 12
    near: float = 1.1
    timed: int = 6
    timed_by_sia: int = 2
    rounds: int = 3
    again: int = 3
    lost: float = 1.05
    few: float = 0.1


CPU = Selection()

GPU = Selection(timed=4, timed_by_sia=1, rounds=1, again=4)
"""Fewer timings, since each program is built, verified and run in a separate process."""


@dataclass(frozen=True, slots=True)
class TileCandidates:
    """Which programs are ranked on a CPU. All values are chosen by hand.

    Attributes:
        widths: Widths of register tiles, in vectors: 1 allows many rows, 4 leaves few.
        widths_timed: Widths that are measured, the fastest by estimate; all uKernels of each are compiled.
        waves: N of DietCode: tiles per share in the second timing of each uKernel.
        pairs: Programs of two heights that are ranked per width, the best by prediction.
    """

    widths: tuple[int, ...] = (1, 2, 3, 4)
    widths_timed: int = 3
    waves: int = 6
    pairs: int = 24


TILES = TileCandidates()


@dataclass(frozen=True, slots=True)
class BlockCandidates:
    """Which programs are ranked on a GPU. Values are chosen by hand where no other origin is given.

    Attributes:
        stages: Numbers of buffers of the shared tiles; the first that fits is used. Static shared memory has 48 KiB per
            block.
        slices: Threads that share the sum of an output.
        share: Least reduction steps of each of these threads at a time.
        best: uKernels per size that are paired and compared: the best by score (FTuner §V-B), and the best by the model
            of all aligned ones with enough registers. The filter drops uKernels that occupy too few multiprocessors or
            wait for memory. For small outputs nothing better exists, and the model predicts a loss of 10 to 20 %
            without them.
        pairs: Upper limit on compared programs of two uKernels.
        paired: Factor by which programs of two uKernels must be predicted to be better, since they have twice the code.
        near: Fractions within which programs count as equal; the first that meets the limit on kernels is used.
        kernels: Limit on kernels of a tree.
        kernels_timed: uKernels that are timed at one wave and at N.
        compilations: Upper limit on compilations of a tree that check for spills.
        ratio: Upper limit on the ratio of measured to predicted seconds, so that one disturbed timing does not distort
            others.
    """

    stages: tuple[int, ...] = (3, 2, 1)
    slices: tuple[int, ...] = (1, 2, 4, 8)
    share: int = 4
    best: int = 10
    pairs: int = 1500
    paired: float = 1.03
    near: tuple[float, ...] = (0.03, 0.05, 0.08, 0.12, 0.2)
    kernels: int = 6
    kernels_timed: int = 12
    compilations: int = 4
    ratio: float = 8.0


BLOCKS = BlockCandidates()
