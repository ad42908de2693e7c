"""Multi-axis analysis: keep uKernels that occupy all cores and are not bound by memory (FTuner §IV-C).

Input: K.Filter, workloads, a device. Output: the remaining uKernels. Space axes (eq. 5): Φ_wkl / φ_K ≥ Active Blocks.
Reduce axis (eq. 6, 7): [wkl.FLOPs / FLOPS : K_mem] ≥ ψ, where K_mem is the slower of main memory and near memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from felixlike.dynamic.crosspick import blocks_of
from felixlike.dynamic.ukernel import Floats, UKernels, Workload, ceil_div
from felixlike.hardware import Device

PSI = 0.5
"""ψ, the least compute-to-memory ratio. The paper gives no value. Chosen by hand: below it a tile waits twice as long
as it computes.
"""


def analyse(kernels: UKernels, workloads: list[Workload], device: Device, psi: float = PSI) -> UKernels:
    """Return the uKernels that pass both analyses."""
    saturated = np.stack([saturates(kernels, w, device) for w in workloads], axis=1)
    cmr = np.stack([compute_eff(kernels, w, device) for w in workloads], axis=1)
    return replace(kernels, cmr=cmr).added(kernels.fits & saturated & (cmr >= psi))


def saturates(kernels: UKernels, workload: Workload, device: Device) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Evaluate eq. 5: bool[n]."""
    return np.asarray(blocks_of(kernels, workload) >= device.active_blocks * device.cores)


def compute_eff(kernels: UKernels, workload: Workload, device: Device) -> Floats:
    """Return CMR, the left side of eq. 6: float64[n]."""
    return np.asarray(workload.flops / device.flops / memory_time(kernels, workload, device))


def memory_time(kernels: UKernels, workload: Workload, device: Device) -> Floats:
    """Return K_mem of eq. 7 in seconds: float64[n].

    data_R and data_W move between main memory and near memory. An operand shared by a column of tiles is read once if
    near memory can hold it. data_transW moves into near memory, data_transR from there to registers.
    """
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
