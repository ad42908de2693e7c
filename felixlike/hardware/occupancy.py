"""What a compiled kernel takes of a multiprocessor, and how many of its warps fit at a time.

In: numbers that the compiler writes into the machine code (`codegen/cubin.py`). Limits of the CUDA C++ Programming
Guide, "Technical Specifications per Compute Capability"; rounding as in NVIDIA's occupancy calculator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

WARP = 32
"""Threads of a warp."""

_KIB = 2**10


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What blocks share: registers of 4 bytes, shared memory, places for warps and for blocks."""

    registers: int
    shared_bytes: int
    warps: int
    blocks: int


_MULTIPROCESSORS = {
    "sm_80": Multiprocessor(65536, 164 * _KIB, 64, 32),
    "sm_86": Multiprocessor(65536, 100 * _KIB, 48, 16),
    "sm_89": Multiprocessor(65536, 100 * _KIB, 48, 24),
    "sm_90": Multiprocessor(65536, 228 * _KIB, 64, 32),
    "sm_100": Multiprocessor(65536, 228 * _KIB, 64, 32),
}
_REGISTERS_AT_ONCE = 256
"""Registers are handed out to a warp in such pieces."""
_RESERVED_BYTES = _KIB
"""Shared memory of each block that the system keeps, from sm_80 on."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the compiler says of a kernel.

    registers: a thread.  local_bytes: a thread's stack: arrays that are indexed at run time, and what was spilled.
    shared_bytes: a block's, static.  threads: of a block at most, as the kernel was declared; 0 where it was not."""

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    threads: int

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @staticmethod
    def of(told: Mapping[str, Any]) -> Kernel:
        """From JSON.  Raises KeyError, TypeError or ValueError for anything else."""
        numbers = {name: int(told[name]) for name in ("registers", "local_bytes", "shared_bytes", "threads")}
        return Kernel(name=str(told["name"]), **numbers)


def multiprocessor(arch: str) -> Multiprocessor:
    """Of an architecture, as in "sm_90" or "sm_90a"; of those that are not listed, sm_80's."""
    return _MULTIPROCESSORS.get(arch.rstrip("af"), _MULTIPROCESSORS["sm_80"])


def blocks_at_once(kernel: Kernel, arch: str) -> int:
    """Blocks of a kernel that a multiprocessor holds at a time; 0 where not even one fits."""
    limits = multiprocessor(arch)
    warps = -(-max(1, kernel.threads) // WARP)
    a_warp = -(-kernel.registers * WARP // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    by_registers = limits.registers // max(1, a_warp) // warps
    by_memory = limits.shared_bytes // (kernel.shared_bytes + _RESERVED_BYTES)
    return min(by_registers, by_memory, limits.warps // warps, limits.blocks)


def occupancy(kernel: Kernel, arch: str) -> float:
    """Warps of a kernel at a time as a share of those that a multiprocessor has places for."""
    warps = -(-max(1, kernel.threads) // WARP)
    return blocks_at_once(kernel, arch) * warps / multiprocessor(arch).warps
