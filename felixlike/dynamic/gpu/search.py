"""Which launches serve which sizes on a GPU: FTuner's filter and score, DietCode's model, a decision tree.

In: an operator, its dimensions, a device. Out: `Chosen`. All of it is arithmetic; where there is a GPU, two timings of
each uKernel take the place of what is counted, and the best programs are timed (`timing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from felixlike.dynamic.align import MOST_THREADS, hardware_align
from felixlike.dynamic.bounds import set_bound
from felixlike.dynamic.combine import pair
from felixlike.dynamic.dispatch import Tree, fit, labels
from felixlike.dynamic.gpu.throughput import Waves, alone, paired
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.sia import Sia, top
from felixlike.dynamic.stages import Stage, compile_stage
from felixlike.dynamic.ukernel import Floats, UKernels, Workload
from felixlike.hardware import Device

_STAGES = (3, 2, 1)
"""Copies of the shared tiles: as many as fit.  Static shared memory has 48 KiB, of which a block may have all."""

_SLICES, _SHARE = (1, 2, 4, 8), 4
"""Threads that sum up an output; and steps at a time of each, at least."""

_TOP = 10
"""uKernels of a size that are paired and compared: the best by score (FTuner §V-B), and the best by the model of all
that are aligned and have registers enough. The filter leaves out what fills too few multiprocessors, or waits for
memory, and has nothing better for small outputs: by the model it loses 10 to 20 % there."""

_MOST_PAIRS = 1500
"""Programs of two uKernels that are compared."""

_NEAR, _MOST_KERNELS = (0.03, 0.05, 0.08, 0.12, 0.2), 6
"""How near to the best a program must be to count as equal: the least of these with which there are so few kernels."""

_PAIRED = 1.03
"""Programs of two uKernels must be better by this than those of one, by what is predicted: they are twice the code."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """programs: worth comparing.  seconds: predicted, float64[programs, sizes].  scores: SIA's of the same, −∞ where a
    program cannot cover a size exactly, or FTuner's filter left out one of its uKernels there.  stages: what the filter
    kept."""

    programs: tuple[BlockProgram, ...]
    seconds: Floats
    scores: Floats
    stages: tuple[Stage, ...]


def ranked(
    few: list[Workload],
    workloads: list[Workload],
    device: Device,
    sia: Sia,
    waves_of: Callable[[Sequence[BlockTile]], Waves],
) -> Ranked:
    """The programs for all sizes.

    few: sizes that uKernels are filtered by.  waves_of: what uKernels take.  Raises NoUKernels."""
    kept, stages = compile_stage(few, device)
    aligned = set_bound(hardware_align(few, device), few, device)
    tiles, origin = _tiles(aligned, few[0].item_bytes, device)
    waves = waves_of(tiles)
    scores = _at_all(_scores(aligned, kept, sia)[origin], len(workloads))
    seconds = alone(tiles, waves, workloads, device)
    best = [{*top(scores[:, w], _TOP), *top(-seconds[:, w], _TOP)} for w in range(len(workloads))]
    chosen = sorted(set().union(*best))
    pairs = _pairs(chosen, tiles, workloads, seconds, device)
    programs = [BlockProgram(tiles[n]) for n in chosen] + [BlockProgram(tiles[a], tiles[b]) for a, b in pairs]
    taken, rated = [seconds[chosen]], [scores[chosen]]
    if pairs:
        taken.append(paired(pairs, tiles, waves, workloads, device))
        rated.append((scores[[a for a, _ in pairs]] + scores[[b for _, b in pairs]]) / 2)
    return Ranked(tuple(programs), np.concatenate(taken), np.concatenate(rated), stages)


def tree_of(
    programs: Sequence[BlockProgram], seconds: Floats, sizes: Sequence[tuple[int, ...]], weights: Sequence[float]
) -> Tree[BlockProgram]:
    """The tree that chooses among programs, with few kernels.  seconds: float64[programs, sizes]."""
    seconds = seconds * np.asarray([1.0 if p.small is None else _PAIRED for p in programs])[:, None]
    for near in _NEAR:
        chosen = labels(seconds, weights, near)
        if len(set(chosen)) <= _MOST_KERNELS:
            break
    return fit(sizes, chosen, weights, programs)


def _tiles(kernels: UKernels, item_bytes: int, device: Device) -> tuple[list[BlockTile], list[int]]:
    """uKernels as blocks, with one thread for an output or several; and the number of the uKernel of each."""
    found, origin = [], []
    for number, row in enumerate(np.concatenate([kernels.reg, kernels.smem], axis=1).tolist()):
        own_rows, own_columns, rows, columns, depth = row
        for slices in _SLICES:
            ways = [BlockTile(rows, columns, depth, own_rows, own_columns, stages, slices) for stages in _STAGES]
            fitting = [tile for tile in ways if tile.shared_bytes(item_bytes) <= device.tile_bytes]
            if fitting and (slices == 1 or (depth >= _SHARE * slices and ways[0].threads <= MOST_THREADS)):
                found.append(fitting[0])
                origin.append(number)
    return found, origin


def _scores(aligned: UKernels, kept: UKernels, sia: Sia) -> Floats:
    """SIA's of all aligned uKernels, float64[aligned, sizes]; −∞ where the filter left one out."""
    own = {tuple(row): n for n, row in enumerate(np.concatenate([aligned.reg, aligned.smem], axis=1).tolist())}
    found = np.full(aligned.fits.shape, -np.inf)
    scores = np.where(kept.fits, sia.scores(kept.cmr, kept.pad, kept.occ), -np.inf)
    for row, score in zip(np.concatenate([kept.reg, kept.smem], axis=1).tolist(), scores, strict=True):
        if tuple(row) in own:
            found[own[tuple(row)]] = score
    return found


def _at_all(scores: Floats, count: int) -> Floats:
    """Scores at sizes spread evenly among so many, at all of them: those of the nearest."""
    return scores[:, np.linspace(0, scores.shape[1] - 1, count).round().astype(int)]


def _pairs(
    chosen: Sequence[int], tiles: Sequence[BlockTile], workloads: Sequence[Workload], seconds: Floats, device: Device
) -> list[tuple[int, int]]:
    """Pairs of uKernels that cover some size exactly, and can be in one launch; those with the best first uKernels."""
    sizes = sorted({w.i for w in workloads})
    order = sorted(chosen, key=lambda n: float((seconds[n] / seconds[list(chosen)].min(axis=0)).min()))
    found = []
    for a in order:
        for b in order:
            high, low = tiles[a], tiles[b]
            if high.rows <= low.rows or (high.columns, high.threads) != (low.columns, low.threads):
                continue
            if BlockProgram(high, low).shared_bytes(workloads[0].item_bytes) > device.tile_bytes:
                continue
            if any(size > high.rows and pair(size, high.rows, low.rows) is not None for size in sizes):
                found.append((a, b))
    return found[:_MOST_PAIRS]
