"""CombinSearch: the main axis is covered exactly by at most two uKernels (FTuner §V-A, algorithm 2).

    53 = 3 × 7 + 4 × 8

In: a size H of the main axis, heights K_τ. Out: `Combination`s, (Num₁ × K¹_τ, Num₂ × K²_τ) = H.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Combination:
    """many × large + few × small, large > small; a single uKernel has few = 0."""

    large: int
    many: int
    small: int = 0
    few: int = 0

    @property
    def size(self) -> int:
        """H, what it covers."""
        return self.large * self.many + self.small * self.few

    @property
    def tiles(self) -> int:
        """How many."""
        return self.many + self.few

    def __str__(self) -> str:
        second = f" + {self.few} × {self.small}" if self.few else ""
        return f"{self.many} × {self.large}{second}"


def combin_search(size: int, heights: Iterable[int]) -> list[Combination]:
    """All pairs of heights that cover a size exactly, of each that with the most of the larger; and all heights that do
    so alone, first.  Empty where none does."""
    ascending = sorted(set(heights))
    alone = [Combination(height, size // height) for height in reversed(ascending) if size % height == 0]
    found = list(alone)
    for large in reversed(ascending):
        if size % large == 0:
            continue
        for small in ascending:
            if small >= large:
                break
            combination = pair(size, large, small)
            if combination is not None:
                found.append(combination)
    return found


def pair(size: int, large: int, small: int) -> Combination | None:
    """The combination of two heights with the most of the larger; None where there is none.

    With g = gcd: few ≡ (H / g) · (small / g)⁻¹ (mod large / g), the least such number."""
    divisor = math.gcd(large, small)
    if size % divisor:
        return None
    modulus = large // divisor
    few = size // divisor * pow(small // divisor, -1, modulus) % modulus if modulus > 1 else 0
    rest = size - few * small
    return Combination(large, rest // large, small, few) if rest >= 0 else None


def even(size: int, highest: int) -> Combination:
    """As few tiles as there can be of a highest height, as even as they can be: of two neighbouring heights."""
    tiles = -(-size // highest)
    small, many = divmod(size, tiles)
    return Combination(small + 1, many, small, tiles - many) if many else Combination(small, tiles)
