"""A program: how a kernel covers its rows at any size, with which uKernels.

In: two heights and a width, or one height and "as even as possible". Out: a `Program`, its combination at a size, and a
number that stands for it in generated code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from felixlike.dynamic.combine import Combination, even, pair


@dataclass(frozen=True, slots=True, order=True)
class Program:
    """large: height of the first uKernel.  small: of the second; 0: all tiles have the neighbouring heights, at most
    `large`, that make them as even as possible.  vectors: width of both."""

    large: int
    small: int
    vectors: int

    def at(self, size: int) -> Combination | None:
        """How it covers a size exactly; None where it cannot."""
        if self.small == 0:
            return even(size, self.large)
        if self.small == self.large:
            return None if size % self.large else Combination(self.large, size // self.large)
        return pair(size, self.large, self.small)

    @property
    def code(self) -> int:
        """Its number: heights, width, gcd of the heights, and the inverse that `combine.pair` needs, a byte each."""
        divisor = math.gcd(self.large, self.small) if self.small else 1
        modulus = self.large // divisor
        inverse = pow(self.small // divisor, -1, modulus) if self.small and modulus > 1 else 0
        return self.large | self.small << 8 | self.vectors << 16 | divisor << 24 | inverse << 32

    def __str__(self) -> str:
        if self.small == 0:
            return f"even ≤ {self.large} × {self.vectors}v"
        heights = f"{self.large}" if self.small == self.large else f"{self.large} + {self.small}"
        return f"{heights} × {self.vectors}v"
