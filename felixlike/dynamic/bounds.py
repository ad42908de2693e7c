"""SetBound: drop tiles that need more registers than the active blocks of a core leave them (FTuner §IV-B, eq. 4).

Input: K.Cross, workloads, a device. Output: K.Filter.

    K.RegsInBlock = (reg_tile_ij + RestRegs) · smem_tile_ij ≤ REGS_PER_SM / block.bound,
    block.bound = min(K.wkl.block, ζ)

On a GPU registers are words and smem_tile_ij is the number of threads of a block. On a CPU registers are vectors and a
core runs one thread: rows × vectors of sums, the vectors of one operand and one broadcast vector.
"""

from __future__ import annotations

import numpy as np

from felixlike.dynamic.align import counted
from felixlike.dynamic.crosspick import blocks_of
from felixlike.dynamic.ukernel import Floats, Ints, UKernels, Workload, ceil_div
from felixlike.hardware import Device

_REST_REGS = 16
"""Registers of a GPU thread for addresses and loop variables. Chosen by hand."""


def set_bound(kernels: UKernels, workloads: list[Workload], device: Device) -> UKernels:
    """Return K.Filter."""
    needed = registers_in_block(kernels, device, max(w.item_bytes for w in workloads))
    fits = np.stack([needed * block_bound(kernels, w, device) <= device.core_registers for w in workloads], axis=1)
    return kernels.added(kernels.fits & fits)


def block_bound(kernels: UKernels, workload: Workload, device: Device) -> Floats:
    """Return block.bound, the blocks on a core at once: float64[n]."""
    available = np.ceil(blocks_of(kernels, workload) / device.cores)
    return np.minimum(available, device.active_blocks)


def registers_in_block(kernels: UKernels, device: Device, item_bytes: int) -> Ints:
    """Return K.RegsInBlock: int64[n]."""
    rows, columns = kernels.reg.T
    if device.kind != "cpu":
        return np.asarray((rows * columns + _REST_REGS) * counted(kernels))
    vectors = ceil_div(columns, np.asarray(device.unit.lanes(8 * item_bytes)))
    return np.asarray(rows * vectors + vectors + 1)


def fits_registers(rows: int, vectors: int, registers: int) -> bool:
    """Return whether a CPU register tile fits into `registers` vector registers."""
    return rows * vectors + vectors + 1 <= registers
