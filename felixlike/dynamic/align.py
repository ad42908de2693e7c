"""HardwareAlign: generate all uKernels whose tiles suit the sizes and the memory hierarchy (FTuner §IV-A, algorithm 1).

Input: workloads, a device. Output: K.Align. Register tiles are factors of the axes, and of the neighbours of primes (53
→ 52, 54). Columns are whole vectors. The tile of the next level starts as the register tile and grows linearly, along
the main axis first. k is a multiple of a memory transaction of 32 bytes, 8 elements of float32. On a GPU the tile of
the next level is a block's tile. It grows by threads, by powers of two and along both axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from felixlike.dynamic.ukernel import Ints, UKernels, Workload
from felixlike.hardware import Device
from felixlike.hardware.vectors import TILE
from felixlike.spaces.gpu.thread_axes import LANES

TRANSACTION_BYTES = 32
"""Size of a memory transaction in bytes."""


@dataclass(frozen=True, slots=True)
class UKernelLimits:
    """Limits of the tiles on CPUs (`steps`, `depths`) and GPUs (all others).

    Steps, depths and numbers of threads are chosen by hand.

    Attributes:
        steps: Upper limit on growth steps of a tile along one axis.
        depths: Tiles of the reduction besides the whole: the smallest and the largest ones.
        own: Upper limit on rows of a thread. With more, sampled thread tiles spilled registers.
        sums: Upper limit on outputs of a thread. With more, sampled thread tiles spilled registers.
        along: Threads of a block along one axis.
        least_threads: Lower limit on threads of a block that does not cover the whole output.
        most_threads: Upper limit on threads of a block.
        transactions: Tiles of the reduction, in memory transactions.
        depth_bytes: Upper limit on such a tile, in bytes.
        products: Upper limit on unrolled products of a thread.
    """

    steps: int = 8
    depths: int = 4
    own: int = 16
    sums: int = 64
    along: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    least_threads: int = 32
    most_threads: int = 256
    transactions: tuple[int, ...] = (1, 2, 4)
    depth_bytes: int = 128
    products: int = 1024


LIMITS = UKernelLimits()


def hardware_align(workloads: list[Workload], device: Device) -> UKernels:
    """Return K.Align without duplicates, for all sizes together."""
    tiles: set[tuple[int, ...]] = set()
    for extents in {(w.i, w.j, w.k, w.item_bytes) for w in workloads}:
        i, j, _, item_bytes = extents
        if device.kind != "cpu":
            tiles |= _block_tiles(extents, device)
            continue
        for reg_i in row_tiles(i, device):
            for reg_j in column_tiles(j, device, item_bytes):
                tiles |= _second_level(extents, (reg_i, reg_j))
    return UKernels.of(sorted(tiles), len(workloads))


def grown(workload: Workload, reg_tile: tuple[int, int]) -> UKernels:
    """Return the uKernels of one register tile of a CPU for one size, without metrics."""
    w = workload
    return UKernels.of(sorted(_second_level((w.i, w.j, w.k, w.item_bytes), reg_tile)), workloads=1)


def _second_level(extents: tuple[int, int, int, int], reg_tile: tuple[int, int]) -> set[tuple[int, ...]]:
    """Return (reg_i, reg_j, smem_i, smem_j, smem_k) of a register tile by SmemTileRule."""
    i, j, k, item_bytes = extents
    sides = _scaled_up((i, j), reg_tile)
    return {(*reg_tile, *side, depth) for side in sides for depth in depth_tiles(k, item_bytes)}


def row_tiles(extent: int, device: Device) -> list[int]:
    """Apply RegTileRule to the rows: factors of the extent, and of both neighbours of a prime.

    The limit is the number of registers of a core on a CPU, 16 rows per thread on a GPU.
    """
    extents = (extent - 1, extent, extent + 1) if is_prime(extent) and extent > 2 else (extent,)
    most = device.core_registers if device.kind == "cpu" else LIMITS.own
    return sorted({f for e in extents for f in factors(e) if f <= most})


def column_tiles(extent: int, device: Device, item_bytes: int) -> list[int]:
    """Apply RegTileRule to the columns: whole vectors, up to those that hold all columns.

    A GPU thread has one or two vectors, or a single column if there are fewer columns than lanes.
    """
    if device.kind != "cpu":
        lanes = min(LANES, device.vector_bits // 8 // item_bytes)
        return [lanes, 2 * lanes] if extent >= lanes else [1]
    lanes = device.unit.lanes(8 * item_bytes)
    most = min(TILE.vectors, -(-extent // lanes))
    return [lanes * vectors for vectors in range(1, most + 1)]


def depth_tiles(extent: int, item_bytes: int) -> list[int]:
    """Return tiles of the reduction: multiples of a transaction that divide it, and the whole extent."""
    unit = max(1, TRANSACTION_BYTES // item_bytes)
    aligned = [depth for depth in range(unit, extent, unit) if extent % depth == 0]
    half = LIMITS.depths // 2
    few = aligned if len(aligned) <= LIMITS.depths else [*aligned[:half], *aligned[-half:]]
    return [*few, extent]


def _scaled_up(extents: tuple[int, int], tile: tuple[int, int]) -> list[tuple[int, int]]:
    """Apply SmemTileRule: grow along the main axis first, then along the other, up to the extents."""
    (i, j), (reg_i, reg_j) = extents, tile
    rows = [reg_i * step for step in range(1, LIMITS.steps + 1) if step == 1 or reg_i * (step - 1) < i]
    grown = [(size, reg_j) for size in rows]
    columns = [reg_j * step for step in range(2, LIMITS.steps + 1) if reg_j * (step - 1) < j]
    return [*grown, *((rows[0], size) for size in columns), *((rows[-1], size) for size in columns)]


def reduction_tiles(extent: int, item_bytes: int) -> list[int]:
    """Return tiles of the reduction on a GPU: a few transactions that divide it, else one transaction."""
    unit = max(1, TRANSACTION_BYTES // item_bytes)
    aligned = [unit * n for n in LIMITS.transactions if unit * n * item_bytes <= LIMITS.depth_bytes]
    return [depth for depth in aligned if extent % depth == 0] or aligned[:1]


def _block_tiles(extents: tuple[int, int, int, int], device: Device) -> set[tuple[int, ...]]:
    """Return (reg_i, reg_j, smem_i, smem_j, smem_k) of a GPU, by RegTileRule and SmemTileRule."""
    i, j, k, item_bytes = extents
    depths = reduction_tiles(k, item_bytes)
    tiles: set[tuple[int, ...]] = set()
    for reg_i in row_tiles(i, device):
        for reg_j in column_tiles(j, device, item_bytes):
            if reg_i * reg_j > LIMITS.sums:
                continue
            for rows in (n for n in LIMITS.along if n == 1 or reg_i * n < 2 * i):
                for columns in (n for n in LIMITS.along if n == 1 or reg_j * n < 2 * j):
                    # A block smaller than a warp is allowed if it covers the whole output.
                    whole = reg_i * rows >= i and reg_j * columns >= j
                    if not (rows * columns >= LIMITS.least_threads or whole) or rows * columns > LIMITS.most_threads:
                        continue
                    sides = (reg_i * rows, reg_j * columns)
                    for depth in depths:
                        fits = (sum(sides) + 2 * LANES) * depth * item_bytes <= device.tile_bytes
                        if fits and reg_i * reg_j * depth <= LIMITS.products:
                            tiles.add((reg_i, reg_j, *sides, depth))
    return tiles


def factors(number: int) -> list[int]:
    """Return all factors of a number, ascending."""
    small = [f for f in range(1, int(number**0.5) + 1) if number % f == 0]
    return sorted({*small, *(number // f for f in small)})


def is_prime(number: int) -> bool:
    """Return whether a number is prime."""
    return len(factors(number)) == 2


def counted(kernels: UKernels) -> Ints:
    """Return the threads of a block, register tiles per tile of the next level: int64[n]."""
    return np.asarray((-(-kernels.smem[:, :2] // kernels.reg)).prod(axis=1))
