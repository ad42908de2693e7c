"""Describe the vector unit that kernels are made for: the width and number of its registers.

AVX-512, AVX2, SSE and NEON differ only in these numbers for the rules.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_UNITS = (("avx512f", 512, 32), ("avx2", 256, 16), ("neon", 128, 32))
"""(LLVM's name of the instruction set, bits of a register, registers), the widest first."""

_PLAIN = (128, 16)
"""Bits of a register and registers, for processors without these instruction sets."""


SHORTEST = _PLAIN[0] // 32
"""Elements of the shortest useful vectors: float32 elements of a register of the narrowest unit."""

IN_FLIGHT = 2 * 4
"""Sums of products that must be independent, so that none waits for another: two multipliers of four cycles' latency,
as in Intel's processors since Skylake and AMD's since Zen 2."""


@dataclass(frozen=True, slots=True)
class TileLimits:
    """Upper limits of a register tile, which bound the search. All values are chosen by hand.

    Attributes:
        vectors: Largest factor of the tile in vectors, which alone fills a quarter of 32 registers.
            `spaces/cpu/register_bounds.py` limits the registers.
        rows: Largest factor of the tile in rows, which alone fills half of 32 registers.
        unrolled_taps: Extent up to which a window's innermost axis is unrolled: the longest that networks usually have.
            No benchmark compares other values.
    """

    vectors: int = 8
    rows: int = 16
    unrolled_taps: int = 7


TILE = TileLimits()


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """The vector registers of a core.

    Attributes:
        bits: Bits of a register.
        registers: Number of registers.
    """

    bits: int
    registers: int

    def lanes(self, item_bits: int) -> int:
        """Return the elements of a register."""
        return max(1, self.bits // item_bits)


def vector_unit(features: Collection[str]) -> VectorUnit:
    """Return the vector unit of a processor from LLVM's features."""
    return next((VectorUnit(bits, count) for name, bits, count in _UNITS if name in features), VectorUnit(*_PLAIN))


def widths(lanes: int) -> list[int]:
    """Return useful vector lengths, longest first: powers of two, since LLVM splits others."""
    return [lanes >> shift for shift in range(lanes.bit_length()) if lanes >> shift >= min(SHORTEST, lanes)]


def power_of_two_below(number: int) -> int:
    """Return the largest power of two that is at most `number`."""
    return 1 << (number.bit_length() - 1)
