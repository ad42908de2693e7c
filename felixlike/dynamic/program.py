"""A program: which uKernels a kernel uses to cover its rows at any size.

Input: two heights and a width, or one height for an even cover. Output: a `Program`, its combination at a size, and the
integer that encodes it in generated code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from felixlike.dynamic.combine import Combination, even, pair


@dataclass(frozen=True, slots=True, order=True)
class Program:
    """A program of one or two uKernels.

    Attributes:
        large: Height of the first uKernel.
        small: Height of the second. 0 for an even cover: tiles of neighbouring heights, at most `large`.
        vectors: Width of both in vectors.
    """

    large: int
    small: int
    vectors: int

    def at(self, size: int) -> Combination | None:
        """Return its exact cover of a size, None if there is none."""
        if self.small == 0:
            return even(size, self.large)
        if self.small == self.large:
            return None if size % self.large else Combination(self.large, size // self.large)
        return pair(size, self.large, self.small)

    @property
    def code(self) -> int:
        """Its code, one byte each from the lowest: both heights, width, gcd of the heights, the inverse that
        `combine.pair` needs.
        """
        divisor = math.gcd(self.large, self.small) if self.small else 1
        modulus = self.large // divisor
        inverse = pow(self.small // divisor, -1, modulus) if self.small and modulus > 1 else 0
        return self.large | self.small << 8 | self.vectors << 16 | divisor << 24 | inverse << 32

    def __str__(self) -> str:
        if self.small == 0:
            return f"even ≤ {self.large} × {self.vectors}v"
        heights = f"{self.large}" if self.small == self.large else f"{self.large} + {self.small}"
        return f"{heights} × {self.vectors}v"
