"""uKernels: the units that programs of every size are put together from (FTuner §III, table I).

In: nothing. Out: `Workload`, an operator at one size, and `UKernels`, many uKernels as columns of numbers, so that each
stage of the filter is one evaluation for all of them and all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Workload:
    """wkl: an operator at one size, C[b, i, j] = Σ_k A[b, i, k] · B[b, j, k].

    batch, i, j, k: extents, products of those of all axes of a kind; i is the main axis τ, covered exactly.
    item_bytes: of an element.  weight: how much it counts."""

    batch: int
    i: int
    j: int
    k: int
    item_bytes: int = 4
    weight: float = 1.0

    @property
    def flops(self) -> int:
        """wkl.FLOPs: a product and a sum for each term."""
        return 2 * self.batch * self.i * self.j * self.k


@dataclass(frozen=True, slots=True)
class UKernel:
    """One uKernel K.  reg_tile: (i, j) in registers.  smem_tile: (i, j, k) in the cache of a core, or shared memory.
    padding_threshold: the part that is no padding, K.pad (eq. 2).  usage_eff: the part of the cores that work, K.occ
    (eq. 3).  compute_eff: time of arithmetic over time of moves, CMR (eq. 6); the best of all sizes each."""

    reg_tile: tuple[int, int]
    smem_tile: tuple[int, int, int]
    padding_threshold: float
    usage_eff: float
    compute_eff: float

    def __str__(self) -> str:
        tiles = " in ".join("×".join(map(str, tile)) for tile in (self.reg_tile, self.smem_tile))
        return f"{tiles}: pad {self.padding_threshold:.2f}, occ {self.usage_eff:.2f}, cmr {self.compute_eff:.2f}"


@dataclass(frozen=True, slots=True)
class UKernels:
    """Many of them, one a row.  reg: int64[n, 2], i and j.  smem: int64[n, 3], i, j and k.  pad, occ, cmr: float64[n,
    workloads], NaN before the stage that finds them.  fits: bool[n, workloads], the workloads each was added to."""

    reg: Ints
    smem: Ints
    pad: Floats
    occ: Floats
    cmr: Floats
    fits: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.reg)

    def taking(self, rows: NDArray[np.bool_] | Ints) -> UKernels:
        """Some of them."""
        return UKernels(*(getattr(self, name)[rows] for name in UKernels.__slots__))

    def added(self, fits: NDArray[np.bool_]) -> UKernels:
        """Those that were added to a workload."""
        return replace(self, fits=fits).taking(np.asarray(fits.any(axis=1)))

    def as_list(self) -> list[UKernel]:
        """One object each."""

        def best(values: Floats) -> Floats:
            return np.asarray(np.where(self.fits, values, -np.inf).max(axis=1, initial=-np.inf))

        pad, occ, cmr = best(self.pad), best(self.occ), best(self.cmr)
        return [
            UKernel((int(r[0]), int(r[1])), (int(s[0]), int(s[1]), int(s[2])), float(p), float(o), float(c))
            for r, s, p, o, c in zip(self.reg, self.smem, pad, occ, cmr, strict=True)
        ]


def ceil_div(a: Ints, b: Ints) -> Ints:
    """⌈a / b⌉."""
    return -(-a // b)
