"""Compute how many warps of a compiled kernel fit on a multiprocessor at a time.

Input: numbers that the compiler writes into the machine code (`codegen/cubin.py`). The limits are from the CUDA C++
Programming Guide, "Technical Specifications per Compute Capability". Rounding is as in NVIDIA's occupancy calculator.
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
    """Resources that blocks share.

    Attributes:
        registers: Registers of 4 bytes.
        shared_bytes: Shared memory in bytes.
        warps: Upper limit on resident warps.
        blocks: Upper limit on resident blocks.
    """

    registers: int
    shared_bytes: int
    warps: int
    blocks: int


_MULTIPROCESSORS = {
    "sm_70": Multiprocessor(65536, 96 * _KIB, 64, 32),
    "sm_72": Multiprocessor(65536, 96 * _KIB, 64, 32),
    "sm_75": Multiprocessor(65536, 64 * _KIB, 32, 16),
    "sm_80": Multiprocessor(65536, 164 * _KIB, 64, 32),
    "sm_86": Multiprocessor(65536, 100 * _KIB, 48, 16),
    "sm_87": Multiprocessor(65536, 164 * _KIB, 48, 16),
    "sm_89": Multiprocessor(65536, 100 * _KIB, 48, 24),
    "sm_90": Multiprocessor(65536, 228 * _KIB, 64, 32),
    "sm_100": Multiprocessor(65536, 228 * _KIB, 64, 32),
}
"""Limits by architecture."""
_REGISTERS_AT_ONCE = 256
"""Registers are allocated to a warp in multiples of this."""
_RESERVED_BYTES, _RESERVING_FROM = _KIB, 80
"""Bytes of shared memory in each block that the system reserves, and the first architecture on which it does."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Resources of a kernel, as the compiler reports them.

    Attributes:
        name: The kernel's name.
        registers: Registers of a thread.
        local_bytes: Stack of a thread in bytes: arrays indexed at runtime, and spilled registers.
        shared_bytes: Static shared memory of a block in bytes.
        threads: Upper limit on threads of a block as declared, 0 if not declared.
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    threads: int

    def told(self) -> dict[str, Any]:
        """Return the values as a JSON object."""
        return asdict(self)

    @staticmethod
    def of(told: Mapping[str, Any]) -> Kernel:
        """Create a kernel from a JSON object. Raises KeyError, TypeError or ValueError for anything else."""
        numbers = {name: int(told[name]) for name in ("registers", "local_bytes", "shared_bytes", "threads")}
        return Kernel(name=str(told["name"]), **numbers)


def multiprocessor(arch: str) -> Multiprocessor:
    """Return the limits of an architecture, as in "sm_90" or "sm_90a". Those that are not listed count as sm_80."""
    return _MULTIPROCESSORS.get(arch.rstrip("af"), _MULTIPROCESSORS["sm_80"])


def version_of(arch: str) -> int:
    """Return an architecture's number: 90 for "sm_90" and "sm_90a"; that of sm_80 if it has none."""
    digits = "".join(filter(str.isdigit, arch))
    return int(digits) if digits else _RESERVING_FROM


def blocks_at_once(kernel: Kernel, arch: str) -> int:
    """Return the blocks of a kernel that a multiprocessor holds at a time, 0 if none fits."""
    limits = multiprocessor(arch)
    warps = -(-max(1, kernel.threads) // WARP)
    a_warp = -(-kernel.registers * WARP // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    by_registers = limits.registers // max(1, a_warp) // warps
    reserved = _RESERVED_BYTES if version_of(arch) >= _RESERVING_FROM else 0
    by_memory = limits.shared_bytes // max(1, kernel.shared_bytes + reserved)
    return min(by_registers, by_memory, limits.warps // warps, limits.blocks)


def occupancy(kernel: Kernel, arch: str) -> float:
    """Return the ratio of a kernel's resident warps to the multiprocessor's limit."""
    warps = -(-max(1, kernel.threads) // WARP)
    return blocks_at_once(kernel, arch) * warps / multiprocessor(arch).warps
