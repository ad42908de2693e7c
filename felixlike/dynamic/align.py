"""HardwareAlign: all uKernels whose tiles suit the sizes and the memory hierarchy (FTuner §IV-A, algorithm 1).

In: workloads, a device. Out: K.Align. Register tiles are factors of the axes, and of the neighbours of primes (53 → 52,
54); columns are whole vectors. The tile of the next level begins as the register tile and grows linearly, along the
main axis first; k is a multiple of 8 for float32, of a memory transaction's 32 bytes in general.
"""

from __future__ import annotations

import numpy as np

from felixlike.dynamic.ukernel import Ints, UKernels, Workload
from felixlike.hardware import Device
from felixlike.hardware.vectors import MOST_VECTORS

TRANSACTION_BYTES = 32
"""What memory gives at once, at least."""

_MOST_STEPS = 8
"""How often a tile may grow along one axis."""

_MOST_DEPTHS = 4
"""Tiles of the reduction that are tried beside the whole: the smallest and the largest."""


def hardware_align(workloads: list[Workload], device: Device) -> UKernels:
    """K.Align, each once, for all sizes together."""
    found: set[tuple[int, ...]] = set()
    for extents in {(w.i, w.j, w.k, w.item_bytes) for w in workloads}:
        i, j, k, item_bytes = extents
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
    most = device.core_registers if device.kind == "cpu" else device.register_bytes // 4
    return sorted({f for e in extents for f in factors(e) if f <= most})


def column_tiles(extent: int, device: Device, item_bytes: int) -> list[int]:
    """RegTileRule for the axis in vectors: a CPU's vectors, up to those that hold all columns; a GPU's factors."""
    if device.kind != "cpu":
        return [f for f in row_tiles(extent, device) if f <= device.register_bytes // 4]
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
