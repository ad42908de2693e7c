"""DietCode's search: evolve thread blocks by a cost model that covers all instances together, sparing thread tiles.

Input: an operator's workloads, a device, costs of uKernels. Output: `Ranked` programs of one uKernel each. All tile
sizes of a uKernel are sampled together, from the largest extents and the device's limits. A mutation moves a factor
between two tiles of an axis: the grid and a thread's outputs, or the steps in shared memory and those around them. The
numbers of threads along both axes stay as sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from felixlike.dynamic.align import LIMITS, column_tiles, factors, reduction_tiles
from felixlike.dynamic.gpu.search import Ranked
from felixlike.dynamic.gpu.throughput import Waves, alone
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.planner import DietCode
from felixlike.dynamic.selection import BLOCKS
from felixlike.dynamic.stages import Stage
from felixlike.dynamic.ukernel import Floats, Workload
from felixlike.errors import NoUKernels
from felixlike.hardware import Device

_ATTEMPTS = 20
"""Samples or mutations per wanted uKernel before fewer are accepted. Chosen by hand."""


def evolved(
    workloads: list[Workload], device: Device, planner: DietCode, waves_of: Callable[[Sequence[BlockTile]], Waves]
) -> Ranked:
    """Search uKernels for all instances. Raise NoUKernels if no sampled block fits the device.

    waves_of: Returns the costs of uKernels.
    """
    search = _Search(workloads, device, planner)
    population = search.sampled()
    if not population:
        raise NoUKernels(
            f"none of {_ATTEMPTS * planner.population} sampled blocks fits",
            where=device.name,
            remedy="check the hardware description: shared memory may be too small for every block",
        )
    count = len(workloads)  # each block serves all instances
    stages = [Stage("Sampling", len(population), len(population) * count)]
    seen: dict[BlockTile, Floats] = {}
    for generation in range(planner.generations + 1):
        new = [tile for tile in population if tile not in seen]
        seconds = alone(new, waves_of(new), workloads, device) if new else np.empty((0, len(workloads)))
        seen.update(zip(new, seconds, strict=True))
        if generation < planner.generations:
            population = search.children(seen)
    stages.append(Stage("Evolution", len(seen), len(seen) * count))
    tiles = list(seen)
    matrix = np.stack([seen[tile] for tile in tiles])
    best = np.argsort(matrix, axis=0, kind="stable")[: BLOCKS.best]
    chosen = sorted(set(best.ravel().tolist()))
    programs = tuple(BlockProgram(tiles[n]) for n in chosen)
    unscored = np.full((len(chosen), len(workloads)), -np.inf)
    stages.append(Stage("Best of each size", len(chosen), len(chosen) * count))
    return Ranked(programs, matrix[chosen], unscored, tuple(stages))


class _Search:
    """Samples and mutates blocks.

    Args:
        workloads: The operator at each instance.
        device: The GPU.
        planner: The search's options.
    """

    def __init__(self, workloads: Sequence[Workload], device: Device, planner: DietCode) -> None:
        self._device, self._planner = device, planner
        self._weights = np.asarray([w.weight for w in workloads])
        self._rng = np.random.default_rng(planner.seed)
        self._i, self._j, self._k = (max(getattr(w, name) for w in workloads) for name in "ijk")
        self._item_bytes = workloads[0].item_bytes
        self._columns = column_tiles(self._j, device, self._item_bytes)
        self._depths = reduction_tiles(self._k, self._item_bytes)

    def sampled(self) -> list[BlockTile]:
        """Return the first population: valid blocks without duplicates."""
        tiles: dict[BlockTile, None] = {}
        for _ in range(_ATTEMPTS * self._planner.population):
            own_rows, own_columns = int(self._rng.integers(1, LIMITS.own + 1)), int(self._rng.choice(self._columns))
            down, across = (int(n) for n in self._rng.choice(LIMITS.along, 2))
            tile = self._valid(down, across, own_rows, own_columns, int(self._rng.choice(self._depths)))
            if tile is not None:
                tiles[tile] = None
            if len(tiles) == self._planner.population:
                break
        return list(tiles)

    def children(self, seen: dict[BlockTile, Floats]) -> list[BlockTile]:
        """Return the next population: the best block of each instance, and mutations of good blocks.

        Blocks are drawn by their throughput relative to the best of each instance, summed with the instances' weights.
        """
        tiles = list(seen)
        matrix = np.stack([seen[tile] for tile in tiles])
        fitness = (matrix.min(axis=0)[None, :] / matrix) @ self._weights
        kept = dict.fromkeys(tiles[int(n)] for n in matrix.argmin(axis=0))
        size = self._planner.population
        for parent in self._rng.choice(len(tiles), size=_ATTEMPTS * size, p=fitness / fitness.sum()):
            if len(kept) >= size:
                break
            changes = self._rng.random() < self._planner.mutation
            child = self.mutated(tiles[int(parent)]) if changes else tiles[int(parent)]
            if child is not None:
                kept[child] = None
        return list(kept)

    def mutated(self, tile: BlockTile) -> BlockTile | None:
        """Return a block with one factor moved between two tiles of one axis, None if it does not fit.

        The numbers of threads along both axes are those of `tile`.
        """
        down, across = tile.rows // tile.own_rows, tile.columns // tile.own_columns
        own_rows, own_columns, depth = tile.own_rows, tile.own_columns, tile.depth
        axis = int(self._rng.integers(3))
        if axis == 0:
            own_rows = self._moved(own_rows, -(-self._i // tile.rows))
        elif axis == 1:
            own_columns = self._moved(own_columns, -(-self._j // tile.columns))
        else:
            depth = self._moved(depth, -(-self._k // depth))
        return self._valid(down, across, own_rows, own_columns, depth)

    def _moved(self, inner: int, outer: int) -> int:
        """Move a factor from the inner tile to the outer one, or back; return the inner one."""
        if self._rng.random() < 0.5:
            return inner // int(self._rng.choice(factors(inner)))
        return inner * int(self._rng.choice(factors(outer)))

    def _valid(self, down: int, across: int, own_rows: int, own_columns: int, depth: int) -> BlockTile | None:
        """Return the block of these tiles within the limits of `align.LIMITS` and shared memory, None if none is."""
        threads = down * across
        rows, columns = down * own_rows, across * own_columns
        whole = rows >= self._i and columns >= self._j
        right = (
            own_rows <= LIMITS.own
            and own_columns in self._columns
            and depth in self._depths
            and own_rows * own_columns <= LIMITS.sums
            and own_rows * own_columns * depth <= LIMITS.products
            and (threads >= LIMITS.least_threads or whole)
            and threads <= LIMITS.most_threads
            and (down == 1 or rows < 2 * self._i)
            and (across == 1 or columns < 2 * self._j)
        )
        if not right:
            return None
        tile = BlockTile(rows, columns, depth, own_rows, own_columns)
        ways = (replace(tile, stages=stages) for stages in BLOCKS.stages)
        return next((way for way in ways if way.shared_bytes(self._item_bytes) <= self._device.tile_bytes), None)
