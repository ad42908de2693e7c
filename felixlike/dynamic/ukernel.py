"""uKernels: the building blocks of programs for every size (FTuner §III, table I).

`Workload` is an operator at one size. `UKernels` holds many uKernels as columns of numbers, so that each stage of the
filter is one evaluation for all uKernels and all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Workload:
    """wkl: an operator at one size, C[b, i, j] = Σ_k A[b, i, k] · B[b, j, k].

    Attributes:
        batch: Product of the extents of all other spatial axes.
        i: Extent of the main axis τ, which is covered exactly.
        j: Extent of the axis in vectors.
        k: Product of the extents of the reduction axes.
        item_bytes: Bytes of an element.
        weight: Weight of the size.
    """

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
    """One uKernel K. Metrics are the best of all sizes.

    Attributes:
        reg_tile: Tile in registers, (i, j).
        smem_tile: Tile in the cache of a core or in shared memory, (i, j, k).
        padding_threshold: Fraction of the computation that is not padding, K.pad (eq. 2).
        usage_eff: Fraction of busy cores, K.occ (eq. 3).
        compute_eff: Time of arithmetic over time of memory transfers, CMR (eq. 6).
    """

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
    """Many uKernels, one per row.

    Attributes:
        reg: int64[n, 2], register tiles (i, j).
        smem: int64[n, 3], tiles (i, j, k) of the next level.
        pad: float64[n, workloads], K.pad, NaN before its stage.
        occ: float64[n, workloads], K.occ, NaN before its stage.
        cmr: float64[n, workloads], CMR, NaN before its stage.
        fits: bool[n, workloads], the workloads that each uKernel serves.
    """

    reg: Ints
    smem: Ints
    pad: Floats
    occ: Floats
    cmr: Floats
    fits: NDArray[np.bool_]

    @staticmethod
    def of(tiles: Iterable[tuple[int, ...]], workloads: int) -> UKernels:
        """Return uKernels that serve all workloads, without metrics. tiles: (reg_i, reg_j, smem_i, smem_j, smem_k)."""
        columns = np.asarray(list(tiles), dtype=np.int64).reshape(-1, 5)
        empty = np.full((len(columns), workloads), np.nan)
        fits = np.ones(empty.shape, dtype=np.bool_)
        return UKernels(columns[:, :2], columns[:, 2:], empty, empty.copy(), empty.copy(), fits)

    def __len__(self) -> int:
        return len(self.reg)

    def taking(self, rows: NDArray[np.bool_] | Ints) -> UKernels:
        """Return a subset of the rows."""
        return UKernels(*(getattr(self, name)[rows] for name in UKernels.__slots__))

    def added(self, fits: NDArray[np.bool_]) -> UKernels:
        """Set `fits` and drop uKernels that serve no workload."""
        return replace(self, fits=fits).taking(np.asarray(fits.any(axis=1)))

    def as_list(self) -> list[UKernel]:
        """Return one object per uKernel."""

        def best(values: Floats) -> Floats:
            return np.asarray(np.where(self.fits, values, -np.inf).max(axis=1, initial=-np.inf))

        pad, occ, cmr = best(self.pad), best(self.occ), best(self.cmr)
        return [
            UKernel((int(r[0]), int(r[1])), (int(s[0]), int(s[1]), int(s[2])), float(p), float(o), float(c))
            for r, s, p, o, c in zip(self.reg, self.smem, pad, occ, cmr, strict=True)
        ]


def ceil_div(a: Ints, b: Ints) -> Ints:
    """Return ⌈a / b⌉."""
    return -(-a // b)
