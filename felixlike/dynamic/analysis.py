"""Multi-axis analysis: does a uKernel keep all cores busy, and does it compute rather than wait (FTuner §IV-C).

In: K.Filter, workloads, a device. Out: the uKernels that are kept. Space axes (eq. 5): Φ_wkl / φ_K ≥ Active Blocks.
Reduce axis (eq. 6, 7): [wkl.FLOPs / FLOPS : K_mem] ≥ ψ, where K_mem is the slower of main memory and the near one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from felixlike.dynamic.crosspick import blocks_of
from felixlike.dynamic.ukernel import Floats, UKernels, Workload, ceil_div
from felixlike.hardware import Device

PSI = 0.5
"""ψ, the least compute-to-memory ratio.  The paper gives none; below this a tile waits twice as long as it computes."""


def analyse(kernels: UKernels, workloads: list[Workload], device: Device, psi: float = PSI) -> UKernels:
    """What is kept after both analyses."""
    saturated = np.stack([saturates(kernels, w, device) for w in workloads], axis=1)
    cmr = np.stack([compute_eff(kernels, w, device) for w in workloads], axis=1)
    return replace(kernels, cmr=cmr).added(kernels.fits & saturated & (cmr >= psi))


def saturates(kernels: UKernels, workload: Workload, device: Device) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Eq. 5, bool[n]."""
    return np.asarray(blocks_of(kernels, workload) >= device.active_blocks * device.cores)


def compute_eff(kernels: UKernels, workload: Workload, device: Device) -> Floats:
    """CMR, the left side of eq. 6, float64[n]."""
    return np.asarray(workload.flops / device.flops / memory_time(kernels, workload, device))


def memory_time(kernels: UKernels, workload: Workload, device: Device) -> Floats:
    """K_mem of eq. 7, seconds, float64[n].

    data_R, data_W: between main memory and the near one; an operand that all tiles of a column of tiles share is read
    once where the near memory keeps it.  data_transW, data_transR: into the near memory, and from it to registers."""
    w, smem_i, smem_j = workload, kernels.smem[:, 0], kernels.smem[:, 1]
    across = ceil_div(np.asarray(w.j), smem_j)
    blocks = blocks_of(kernels, w)
    whole = w.batch * (w.i * w.k + w.j * w.k) * w.item_bytes
    read = np.minimum(blocks * (smem_i + smem_j) * w.k, w.batch * (w.i * w.k * across + w.j * w.k)) * w.item_bytes
    read = np.where(whole <= device.l3_bytes + device.l2_bytes, np.minimum(read, whole), read).astype(np.float64)
    written = w.batch * w.i * w.j * w.item_bytes
    reg_i, reg_j = kernels.reg.T
    tiles = w.batch * ceil_div(np.asarray(w.i), reg_i) * ceil_div(np.asarray(w.j), reg_j)
    from_near = tiles * (reg_i + reg_j) * w.k * w.item_bytes
    far = read / device.memory_bandwidth + written / device.memory_bandwidth
    near = read / device.near_bandwidth + from_near / device.near_bandwidth
    return np.asarray(np.maximum(far, near), dtype=np.float64)
