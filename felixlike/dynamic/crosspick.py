"""CrossPick: trade padding against core occupancy (FTuner §IV-B, algorithm 1).

Input: K.Align, workloads, a device. Output: K.Cross. ε rises from 50 % to 95 % by 1 %, λ falls from 95 % to 90 % by
0.1 %. A uKernel with K.pad ≥ ε and K.occ ≥ λ at any of these steps is added to the workload.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from felixlike._util import option_checks
from felixlike.dynamic.padding import padding_threshold
from felixlike.dynamic.ukernel import Floats, UKernels, Workload, ceil_div
from felixlike.errors import InvalidOption
from felixlike.hardware import Device


@dataclass(frozen=True, slots=True)
class Stride:
    """ϵ_min, ϵ_max, Δϵ and λ_max, λ_min, Δλ, in thousandths.

    Raises:
        InvalidOption: A value is no whole number from 0 to 1000, a step is 0, or there are no steps.
    """

    pad_from: int = 500
    pad_to: int = 950
    pad_step: int = 10
    occ_from: int = 950
    occ_to: int = 900
    occ_step: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            least = int(field.name.endswith("_step"))
            option_checks.whole(getattr(self, field.name), field.name, least=least, most=1000, where="stride")
        if not self.pairs():
            raise InvalidOption(
                f"ε cannot rise from {self.pad_from} to {self.pad_to} while λ falls from {self.occ_from} to"
                f" {self.occ_to}",
                where="stride",
                remedy="give pad_from ≤ pad_to and occ_from ≥ occ_to",
            )

    def pairs(self) -> list[tuple[float, float]]:
        """Return (ε_i, λ_j) of each step, until either has passed its last value."""
        steps, pad, occ = [], self.pad_from, self.occ_from
        while pad <= self.pad_to and occ >= self.occ_to:
            steps.append((pad / 1000, occ / 1000))
            pad, occ = pad + self.pad_step, occ - self.occ_step
        return steps


def cross_pick(kernels: UKernels, workloads: list[Workload], device: Device, stride: Stride | None = None) -> UKernels:
    """Return K.Cross. uKernels whose tiles overflow the memory of a core are dropped first."""
    kernels = kernels.taking(~overflows(kernels, device, max(w.item_bytes for w in workloads)))
    pad, occ = padding_threshold(kernels, workloads), usage_eff(kernels, workloads, device)
    fits = np.zeros(pad.shape, dtype=np.bool_)
    for epsilon, lam in (stride or Stride()).pairs():
        fits |= (pad >= epsilon) & (occ >= lam)
    return replace(kernels, pad=pad, occ=occ).added(fits)


def usage_eff(kernels: UKernels, workloads: list[Workload], device: Device) -> Floats:
    """Return K.occ = (wkl/K) / ceil_by(wkl/K, NumCores), the used fraction of core slots: float64[n, workloads]."""
    columns = []
    for workload in workloads:
        blocks = blocks_of(kernels, workload)
        columns.append(blocks / (np.ceil(blocks / device.cores) * device.cores))
    return np.stack(columns, axis=1)


def blocks_of(kernels: UKernels, workload: Workload) -> Floats:
    """Return wkl/K, the number of uKernels that compose a workload: float64[n]."""
    rows = ceil_div(np.asarray(workload.i), kernels.smem[:, 0])
    columns = ceil_div(np.asarray(workload.j), kernels.smem[:, 1])
    return np.asarray(workload.batch * rows * columns, dtype=np.float64)


def overflows(kernels: UKernels, device: Device, item_bytes: int) -> NDArray[np.bool_]:
    """Return mem.IsOverflow(): whether the operands of a tile exceed a core's memory: bool[n]."""
    i, j, k = kernels.smem.T
    return np.asarray((i * k + j * k) * item_bytes > device.tile_bytes)
