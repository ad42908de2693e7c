"""CombinSearch: cover the main axis exactly with at most two uKernels (FTuner §V-A, algorithm 2).

    53 = 3 × 7 + 4 × 8

Input: a size H of the main axis, heights K_τ. Output: `Combination`s, (Num₁ × K¹_τ, Num₂ × K²_τ) = H.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Combination:
    """The sum many × large + few × small, with large > small; a single uKernel has few = 0."""

    large: int
    many: int
    small: int = 0
    few: int = 0

    @property
    def size(self) -> int:
        """H, the number of rows covered."""
        return self.large * self.many + self.small * self.few

    @property
    def tiles(self) -> int:
        """The number of tiles."""
        return self.many + self.few

    def __str__(self) -> str:
        second = f" + {self.few} × {self.small}" if self.few else ""
        return f"{self.many} × {self.large}{second}"


def combin_search(size: int, heights: Iterable[int]) -> list[Combination]:
    """Return heights that cover a size alone, then pairs of heights that cover it exactly; empty if none does.

    Each pair uses as many tiles of the larger height as possible, and at least one of each.
    """
    ascending = sorted(set(heights))
    singles = [Combination(height, size // height) for height in reversed(ascending) if size % height == 0]
    combinations = list(singles)
    for large in reversed(ascending):
        if size % large == 0 or size < large:
            continue
        for small in ascending:
            if small >= large:
                break
            combination = pair(size, large, small)
            if combination is not None and combination.many:
                combinations.append(combination)
    return combinations


def pair(size: int, large: int, small: int) -> Combination | None:
    """Return the combination of two heights with the most tiles of the larger; None if none covers the size.

    With g = gcd: few ≡ (H / g) · (small / g)⁻¹ (mod large / g), the least such number.
    """
    divisor = math.gcd(large, small)
    if size % divisor:
        return None
    modulus = large // divisor
    few = size // divisor * pow(small // divisor, -1, modulus) % modulus if modulus > 1 else 0
    rest = size - few * small
    return Combination(large, rest // large, small, few) if rest >= 0 else None


def even(size: int, highest: int) -> Combination:
    """Cover a size with the fewest tiles up to a height, of equal or of two neighbouring heights."""
    tiles = -(-size // highest)
    small, many = divmod(size, tiles)
    return Combination(small + 1, many, small, tiles - many) if many else Combination(small, tiles)
