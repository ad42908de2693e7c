"""SetBound: no tile needs more registers than the blocks at work on a core leave it (FTuner §IV-B, eq. 4).

In: K.Cross, workloads, a device. Out: K.Filter.

    K.RegsInBlock = (reg_tile_ij + RestRegs) · smem_tile_ij ≤ REGS_PER_SM / block.bound,
    block.bound = min(K.wkl.block, ζ)

On a GPU registers are words and smem_tile_ij counts a block's threads. On a CPU they are vectors, and a core runs one
thread: a tile of rows × vectors, the vectors of the operand and one that is broadcast.
"""

from __future__ import annotations

import numpy as np

from felixlike.dynamic.align import counted
from felixlike.dynamic.crosspick import blocks_of
from felixlike.dynamic.ukernel import Floats, Ints, UKernels, Workload, ceil_div
from felixlike.hardware import Device

_REST_REGS = 16
"""Registers of a GPU's thread for addresses and loop variables."""


def set_bound(kernels: UKernels, workloads: list[Workload], device: Device) -> UKernels:
    """K.Filter."""
    needed = registers_in_block(kernels, device, max(w.item_bytes for w in workloads))
    fits = np.stack([needed * block_bound(kernels, w, device) <= device.core_registers for w in workloads], axis=1)
    return kernels.added(kernels.fits & fits)


def block_bound(kernels: UKernels, workload: Workload, device: Device) -> Floats:
    """block.bound, float64[n]: blocks on a core at once; K.wkl.block where the workload has no more."""
    wanted = np.ceil(blocks_of(kernels, workload) / device.cores)
    return np.minimum(wanted, device.active_blocks)


def registers_in_block(kernels: UKernels, device: Device, item_bytes: int) -> Ints:
    """K.RegsInBlock, int64[n]."""
    rows, columns = kernels.reg.T
    if device.kind != "cpu":
        return np.asarray((rows * columns + _REST_REGS) * counted(kernels))
    vectors = ceil_div(columns, np.asarray(device.unit.lanes(8 * item_bytes)))
    return np.asarray(rows * vectors + vectors + 1)


def fits_registers(rows: int, vectors: int, registers: int) -> bool:
    """The same of one register tile of a CPU."""
    return rows * vectors + vectors + 1 <= registers
