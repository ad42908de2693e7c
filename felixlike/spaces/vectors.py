"""The vector unit that kernels are shaped for: how wide its registers are, and how many there are.

AVX-512, AVX2, SSE and NEON differ in these numbers only; rules never ask for more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_UNITS = (("avx512f", 512, 32), ("avx2", 256, 16), ("neon", 128, 32))
"""(LLVM's name of the instruction set, bits of a register, registers), the widest first."""

_PLAIN = (128, 16)
"""Of processors that have none of them."""


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """bits: of one register.  registers: how many there are."""

    bits: int
    registers: int

    def lanes(self, item_bits: int) -> int:
        """Elements of a register."""
        return max(1, self.bits // item_bits)


@dataclass(frozen=True, slots=True)
class Machine:
    """What kernels are shaped for.  cores: that run a kernel together."""

    unit: VectorUnit
    cores: int


def vector_unit(target: Any) -> VectorUnit:
    """The vector unit of an llvm target."""
    from felixlike import tvmlib

    features = tvmlib.cpu_features(target)
    return next((VectorUnit(bits, count) for name, bits, count in _UNITS if name in features), VectorUnit(*_PLAIN))
