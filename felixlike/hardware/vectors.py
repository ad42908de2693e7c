"""The vector unit that kernels are shaped for: how wide its registers are, and how many there are.

AVX-512, AVX2, SSE and NEON differ in these numbers only; rules never ask for more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_UNITS = (("avx512f", 512, 32), ("avx2", 256, 16), ("neon", 128, 32))
"""(LLVM's name of the instruction set, bits of a register, registers), the widest first."""

_PLAIN = (128, 16)
"""Of processors that have none of them."""


MOST_VECTORS, MOST_ROWS = 8, 16
"""Factors of a register tile at most, in vectors and in rows; how many registers it may fill is for `spaces.bounds`."""

UNROLLED_TAPS = 7
"""The innermost axis of a window is unrolled up to this extent."""


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """bits: of one register.  registers: how many there are."""

    bits: int
    registers: int

    def lanes(self, item_bits: int) -> int:
        """Elements of a register."""
        return max(1, self.bits // item_bits)


def vector_unit(features: Collection[str]) -> VectorUnit:
    """The vector unit of a processor.  features: LLVM's names of what it can do."""
    return next((VectorUnit(bits, count) for name, bits, count in _UNITS if name in features), VectorUnit(*_PLAIN))


def widths(lanes: int) -> list[int]:
    """Vector lengths worth using, longest first: powers of two, since LLVM takes others apart."""
    return [lanes >> shift for shift in range(lanes.bit_length()) if lanes >> shift >= min(4, lanes)]


def power_of_two_below(number: int) -> int:
    """The largest power of two that is at most a number."""
    return 1 << (number.bit_length() - 1)
