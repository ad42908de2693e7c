"""HardwareAlign: all uKernels whose tiles suit the sizes and the memory hierarchy (FTuner §IV-A, algorithm 1).

In: workloads, a device. Out: K.Align. Register tiles are factors of the axes, and of the neighbours of primes (53 → 52,
54); columns are whole vectors. The tile of the next level begins as the register tile and grows linearly, along the
main axis first; k is a multiple of 8 for float32, of a memory transaction's 32 bytes in general. On a GPU the tile of
the next level is a block's and grows by threads: by powers of two, and along both axes.
"""

from __future__ import annotations

import numpy as np

from felixlike.dynamic.ukernel import Ints, UKernels, Workload
from felixlike.hardware import Device
from felixlike.hardware.vectors import MOST_VECTORS
from felixlike.spaces.gpu.thread_axes import LANES

TRANSACTION_BYTES = 32
"""What memory gives at once, at least."""

_MOST_STEPS = 8
"""How often a tile may grow along one axis."""

_MOST_DEPTHS = 4
"""Tiles of the reduction that are tried beside the whole: the smallest and the largest."""

_MOST_OWN, _MOST_SUMS = 16, 64
"""Rows of a GPU's thread, and outputs: with more, random points of the thread tiles spilled."""

_THREADS_ALONG, _LEAST_THREADS, MOST_THREADS = (1, 2, 4, 8, 16, 32, 64), 32, 256
"""Threads of a block along an axis; and in all, at least and at most."""

_DEPTHS, _MOST_DEPTH_BYTES, _MOST_STEPS_OUT = (1, 2, 4), 128, 1024
"""Tiles of a GPU's reduction, in transactions; their bytes at most; products that a thread has written out at most."""


def hardware_align(workloads: list[Workload], device: Device) -> UKernels:
    """K.Align, each once, for all sizes together."""
    found: set[tuple[int, ...]] = set()
    for extents in {(w.i, w.j, w.k, w.item_bytes) for w in workloads}:
        i, j, k, item_bytes = extents
        if device.kind != "cpu":
            found |= _block_tiles(extents, device)
            continue
        depths = depth_tiles(k, item_bytes)
        for reg_i in row_tiles(i, device):
            for reg_j in column_tiles(j, device, item_bytes):
                for smem_i, smem_j in _scaled_up((i, j), (reg_i, reg_j)):
                    found.update((reg_i, reg_j, smem_i, smem_j, depth) for depth in depths)
    columns = np.asarray(sorted(found), dtype=np.int64).reshape(-1, 5)
    empty = np.full((len(columns), len(workloads)), np.nan)
    fits = np.ones(empty.shape, dtype=np.bool_)
    return UKernels(columns[:, :2], columns[:, 2:], empty, empty.copy(), empty.copy(), fits)


def row_tiles(extent: int, device: Device) -> list[int]:
    """RegTileRule for an axis that is broadcast: factors of its extent, and of both neighbours of a prime, as many rows
    as there are registers at most."""
    extents = (extent - 1, extent, extent + 1) if is_prime(extent) and extent > 2 else (extent,)
    most = device.core_registers if device.kind == "cpu" else _MOST_OWN
    return sorted({f for e in extents for f in factors(e) if f <= most})


def column_tiles(extent: int, device: Device, item_bytes: int) -> list[int]:
    """RegTileRule for the axis in vectors: whole ones, up to those that hold all columns; of a GPU's thread one or two,
    or less than one where there are few columns."""
    if device.kind != "cpu":
        lanes = min(LANES, device.vector_bits // 8 // item_bytes)
        return [lanes, 2 * lanes] if extent >= lanes else [1]
    lanes = device.unit.lanes(8 * item_bytes)
    most = min(MOST_VECTORS, -(-extent // lanes))
    return [lanes * vectors for vectors in range(1, most + 1)]


def depth_tiles(extent: int, item_bytes: int) -> list[int]:
    """Tiles of the reduction: multiples of a transaction that divide it, as they grow; and all of it."""
    unit = max(1, TRANSACTION_BYTES // item_bytes)
    aligned = [depth for depth in range(unit, extent, unit) if extent % depth == 0]
    half = _MOST_DEPTHS // 2
    few = aligned if len(aligned) <= _MOST_DEPTHS else [*aligned[:half], *aligned[-half:]]
    return [*few, extent]


def _scaled_up(extents: tuple[int, int], tile: tuple[int, int]) -> list[tuple[int, int]]:
    """SmemTileRule: along the major axis first, then along the other; a tile that covers an axis grows no more."""
    (i, j), (reg_i, reg_j) = extents, tile
    rows = [reg_i * step for step in range(1, _MOST_STEPS + 1) if step == 1 or reg_i * (step - 1) < i]
    found = [(size, reg_j) for size in rows]
    columns = [reg_j * step for step in range(2, _MOST_STEPS + 1) if reg_j * (step - 1) < j]
    return [*found, *((rows[0], size) for size in columns), *((rows[-1], size) for size in columns)]


def _block_tiles(extents: tuple[int, int, int, int], device: Device) -> set[tuple[int, ...]]:
    """(reg_i, reg_j, smem_i, smem_j, smem_k) of a GPU: RegTileRule, and SmemTileRule by threads."""
    i, j, k, item_bytes = extents
    unit = max(1, TRANSACTION_BYTES // item_bytes)
    aligned = [unit * n for n in _DEPTHS if unit * n * item_bytes <= _MOST_DEPTH_BYTES]
    depths = [depth for depth in aligned if k % depth == 0] or aligned[:1]
    found: set[tuple[int, ...]] = set()
    for reg_i in row_tiles(i, device):
        for reg_j in column_tiles(j, device, item_bytes):
            if reg_i * reg_j > _MOST_SUMS:
                continue
            for rows in (n for n in _THREADS_ALONG if n == 1 or reg_i * n < 2 * i):
                for columns in (n for n in _THREADS_ALONG if n == 1 or reg_j * n < 2 * j):
                    # Whatever is smaller than a warp has all threads that there can be.
                    whole = reg_i * rows >= i and reg_j * columns >= j
                    if not (rows * columns >= _LEAST_THREADS or whole) or rows * columns > MOST_THREADS:
                        continue
                    sides = (reg_i * rows, reg_j * columns)
                    for depth in depths:
                        fits = (sum(sides) + 2 * LANES) * depth * item_bytes <= device.tile_bytes
                        if fits and reg_i * reg_j * depth <= _MOST_STEPS_OUT:
                            found.add((reg_i, reg_j, *sides, depth))
    return found


def factors(number: int) -> list[int]:
    """All of them, ascending."""
    small = [f for f in range(1, int(number**0.5) + 1) if number % f == 0]
    return sorted({*small, *(number // f for f in small)})


def is_prime(number: int) -> bool:
    """Whether it has two factors."""
    return len(factors(number)) == 2


def counted(kernels: UKernels) -> Ints:
    """Threads of a block: register tiles in the tile of the next level, int64[n]."""
    return np.asarray((-(-kernels.smem[:, :2] // kernels.reg)).prod(axis=1))
