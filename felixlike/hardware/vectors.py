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


SHORTEST = _PLAIN[0] // 32
"""Elements of the shortest vectors worth having: those of float32 that fill a register of the plainest unit."""

IN_FLIGHT = 2 * 4
"""Sums of products that must be independent of each other, so that none waits for another: two multipliers of four
cycles' latency, as Intel's processors since Skylake and AMD's since Zen 2 have."""

MOST_VECTORS, MOST_ROWS = 8, 16
"""Factors of a register tile at most, in vectors and in rows; how many registers it may fill is for `spaces.bounds`.
Bounds of a search, chosen by hand: either alone fills a quarter, or half, of 32 registers."""

UNROLLED_TAPS = 7
"""The innermost axis of a window is unrolled up to this extent: the longest that networks usually have.  Chosen by
hand: no benchmark compares other values."""


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
    return [lanes >> shift for shift in range(lanes.bit_length()) if lanes >> shift >= min(SHORTEST, lanes)]


def power_of_two_below(number: int) -> int:
    """The largest power of two that is at most a number."""
    return 1 << (number.bit_length() - 1)
