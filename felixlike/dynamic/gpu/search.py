"""Rank the launches for each size on a GPU: FTuner's filter and score, DietCode's model, a decision tree.

Input: an operator's workloads, a device. Output: `Ranked`, and a tree. All of it is arithmetic. If there is a GPU, two
timings of each uKernel correct the predictions, and the best programs are timed (`timing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from felixlike.dynamic.align import LIMITS, hardware_align
from felixlike.dynamic.bounds import set_bound
from felixlike.dynamic.combine import pair
from felixlike.dynamic.construct import Constructed, best_of
from felixlike.dynamic.dispatch import Tree, fit, labels
from felixlike.dynamic.gpu.throughput import Waves, alone, paired
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.planner import FTuner
from felixlike.dynamic.selection import BLOCKS
from felixlike.dynamic.sia import Sia, top
from felixlike.dynamic.stages import STAGES, Stage, compile_stage
from felixlike.dynamic.ukernel import Floats, UKernels, Workload
from felixlike.hardware import Device


@dataclass(frozen=True, slots=True)
class Ranked:
    """Ranked programs.

    Attributes:
        programs: The programs worth comparing.
        seconds: float64[programs, sizes], predicted seconds.
        scores: float64[programs, sizes], SIA scores; −∞ where FTuner's filter dropped one of the uKernels.
        stages: uKernels left after each stage of the filter.
    """

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
    """Rank the programs for all sizes. Raise NoUKernels.

    few: The sizes by which uKernels are filtered. waves_of: Returns the costs of uKernels.
    """
    filtered, stages = compile_stage(few, device, stages=STAGES[device.kind])
    aligned = set_bound(hardware_align(few, device), few, device)
    tiles, origin = _tiles(aligned, few[0].item_bytes, device)
    waves = waves_of(tiles)
    scores = _at_all(_scores(aligned, filtered, sia)[origin], len(workloads))
    seconds = alone(tiles, waves, workloads, device)
    best = [{*top(scores[:, w], BLOCKS.best), *top(-seconds[:, w], BLOCKS.best)} for w in range(len(workloads))]
    chosen = sorted(set().union(*best))
    pairs = _pairs(chosen, tiles, workloads, seconds, device)
    programs = [BlockProgram(tiles[n]) for n in chosen] + [BlockProgram(tiles[a], tiles[b]) for a, b in pairs]
    predicted, ratings = [seconds[chosen]], [scores[chosen]]
    if pairs:
        predicted.append(paired(pairs, tiles, waves, workloads, device))
        ratings.append((scores[[a for a, _ in pairs]] + scores[[b for _, b in pairs]]) / 2)
    return Ranked(tuple(programs), np.concatenate(predicted), np.concatenate(ratings), stages)


def constructed(
    workloads: list[Workload], device: Device, planner: FTuner
) -> tuple[Constructed[BlockProgram], tuple[Stage, ...]]:
    """Return the program with FTuner's best score for each size, and the counts. Raise NoUKernels.

    Sizes that no program covers exactly get the block with the best score, some rows of which are not written.
    """
    item_bytes = workloads[0].item_bytes
    kernels, stages = compile_stage(workloads, device, stride=planner.stride, psi=planner.psi)
    tiles, origin = _tiles(kernels, item_bytes, device, slices=(1,))
    kernels = kernels.taking(np.asarray(origin))
    scores = np.where(kernels.fits, planner.sia.scores(kernels.cmr, kernels.pad, kernels.occ), -np.inf)
    chosen, total, uncovered = [], 0, 0
    for place, workload in enumerate(workloads):
        best, count = _best_blocks(workload.i, tiles, scores[:, place], item_bytes, device)
        total += count
        if best is None:
            uncovered += 1
            best = BlockProgram(tiles[int(scores[:, place].argmax())])
        chosen.append(best)
    programs = Constructed(tuple(chosen), total, uncovered)
    return programs, (*stages, programs.stage(len({tile for program in chosen for tile in program.tiles})))


def _best_blocks(
    size: int, tiles: Sequence[BlockTile], scores: Floats, item_bytes: int, device: Device
) -> tuple[BlockProgram | None, int]:
    """Return the program with the best score that covers a size exactly, and the number of such programs.

    Both uKernels of a program have as many columns and threads.
    """
    groups: dict[tuple[int, int], dict[int, tuple[float, BlockTile]]] = {}
    for number in map(int, np.flatnonzero(np.isfinite(scores))):
        tile, score = tiles[number], float(scores[number])
        heights = groups.setdefault((tile.columns, tile.threads), {})
        heights[tile.rows] = max(heights.get(tile.rows, (-np.inf, tile)), (score, tile))
    best: tuple[float, BlockProgram] | None = None
    programs = 0
    for heights in groups.values():
        score, cover, count = best_of(size, {rows: rated for rows, (rated, _) in heights.items()})
        programs += count
        if cover is None:
            continue
        program = BlockProgram(heights[cover.large][1], heights[cover.small][1] if cover.few else None)
        fits = program.shared_bytes(item_bytes) <= device.tile_bytes
        if fits and (best is None or score > best[0]):
            best = score, program
    return None if best is None else best[1], programs


def tree_of(
    programs: Sequence[BlockProgram], seconds: Floats, sizes: Sequence[tuple[int, ...]], weights: Sequence[float]
) -> Tree[BlockProgram]:
    """Fit the tree that chooses among programs, with few kernels. seconds: float64[programs, sizes]."""
    seconds = seconds * np.asarray([1.0 if p.small is None else BLOCKS.paired for p in programs])[:, None]
    for near in BLOCKS.near:
        chosen = labels(seconds, weights, near)
        if len(set(chosen)) <= BLOCKS.kernels:
            break
    return fit(sizes, chosen, weights, programs)


def _tiles(
    kernels: UKernels, item_bytes: int, device: Device, slices: Sequence[int] = BLOCKS.slices
) -> tuple[list[BlockTile], list[int]]:
    """Return uKernels as blocks with one or several threads per output, and the index of the uKernel of each."""
    tiles, origin = [], []
    for number, row in enumerate(np.concatenate([kernels.reg, kernels.smem], axis=1).tolist()):
        own_rows, own_columns, rows, columns, depth = row
        for parts in slices:
            ways = [BlockTile(rows, columns, depth, own_rows, own_columns, stages, parts) for stages in BLOCKS.stages]
            fitting = [tile for tile in ways if tile.shared_bytes(item_bytes) <= device.tile_bytes]
            if fitting and (parts == 1 or (depth >= BLOCKS.share * parts and ways[0].threads <= LIMITS.most_threads)):
                tiles.append(fitting[0])
                origin.append(number)
    return tiles, origin


def _scores(aligned: UKernels, filtered: UKernels, sia: Sia) -> Floats:
    """Return the SIA scores of all aligned uKernels, float64[aligned, sizes]; −∞ where the filter dropped one."""
    index_of = {tuple(row): n for n, row in enumerate(np.concatenate([aligned.reg, aligned.smem], axis=1).tolist())}
    all_scores = np.full(aligned.fits.shape, -np.inf)
    scores = np.where(filtered.fits, sia.scores(filtered.cmr, filtered.pad, filtered.occ), -np.inf)
    for row, score in zip(np.concatenate([filtered.reg, filtered.smem], axis=1).tolist(), scores, strict=True):
        if tuple(row) in index_of:
            all_scores[index_of[tuple(row)]] = score
    return all_scores


def _at_all(scores: Floats, count: int) -> Floats:
    """Return scores at `count` sizes from scores at some of them, evenly spread: those of the nearest."""
    return scores[:, np.linspace(0, scores.shape[1] - 1, count).round().astype(int)]


def _pairs(
    chosen: Sequence[int], tiles: Sequence[BlockTile], workloads: Sequence[Workload], seconds: Floats, device: Device
) -> list[tuple[int, int]]:
    """Return pairs of uKernels that cover some size exactly and fit into one launch, those with the best first uKernel
    first.
    """
    sizes = sorted({w.i for w in workloads})
    order = sorted(chosen, key=lambda n: float((seconds[n] / seconds[list(chosen)].min(axis=0)).min()))
    pairs = []
    for a in order:
        for b in order:
            high, low = tiles[a], tiles[b]
            if high.rows <= low.rows or (high.columns, high.threads) != (low.columns, low.threads):
                continue
            if BlockProgram(high, low).shared_bytes(workloads[0].item_bytes) > device.tile_bytes:
                continue
            if any(size > high.rows and pair(size, high.rows, low.rows) is not None for size in sizes):
                pairs.append((a, b))
    return pairs[: BLOCKS.pairs]
