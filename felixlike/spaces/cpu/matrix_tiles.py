"""Multiply matrices of bfloat16 numbers by an instruction: rows of pairs by columns of pairs, with sums in float32.

    unroll r, v: for i, k in 16: vector j: for p in 2: Y[r, i, v, j] += X[…, 2·k + p] · W[2·k + p, …]

Input: a contraction and its roles in a tile of pairs (`bfloat16_pairs.py`). Output: the size of the matrices, if its
products can be computed so. The loop over rows, `i`, is annotated with `Matrix`, and
`codegen/passes/multiply_matrices.py` replaces it by an instruction. Sums stay in the processor's tile registers while
the reduction runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from felixlike.codegen.matrix_functions import COLUMNS
from felixlike.hardware import Device, matrices
from felixlike.spaces.contraction import Contraction
from felixlike.spaces.cpu import bfloat16_pairs
from felixlike.spaces.padding import is_plain
from felixlike.spaces.roles import Roles

MOST = 4
"""Largest factor of a tile of sums in matrices: no tile of more leaves registers for its factors (`Bounds.fits`)."""

_PADS = 1.1
"""Ratio of matrices from which rows are padded, and up to which there is one more for an even number. Chosen by hand:
padded rows are copied and computed, too."""


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """The size of the matrices that an instruction multiplies.

    Attributes:
        rows: Rows of the first factor, and of the sums.
        words: Pairs in such a row, which are rows of the second factor.
        padded_rows: The multiple that the rows axis must be padded to, 1 for none.
        padded_steps: The same for the summed axis.
        lines: Whether tiles have several lines of the window, since one matrix has all rows.
    """

    rows: int
    words: int
    padded_rows: int = 1
    padded_steps: int = 1
    lines: bool = False

    @property
    def times(self) -> float:
        """Return the ratio of products per second to float32: 16 if matrices are full."""
        return matrices.times(self.rows, self.words)


def matrix_tile(contraction: Contraction, roles: Roles, device: Device, *, padded: bool = False) -> MatrixTile | None:
    """Return the size of a contraction's matrices, or None if its products cannot be computed in them.

    Its roles are those in pairs. Vectors have 16 elements and lie along the output's last dimension. The operand
    without vectors is copied. `padded` says whether plain products may still be padded.
    """
    rows, summed = roles.rows, roles.summed
    if not device.has_tiles or rows is None or summed is None or roles.lanes != COLUMNS:
        return None
    operand = bfloat16_pairs.broadcast(contraction, roles)
    if operand.constant or rows.place not in operand.axes or contraction.written[-1] != roles.vector.place:
        return None
    pairs = -(-summed.extent // bfloat16_pairs.PAIR)
    may_pad = padded and is_plain(contraction)
    height, padded_rows = _cut(rows.extent, may_pad, even=True)
    words, padded_pairs = _cut(pairs, may_pad)
    odd = bfloat16_pairs.PAIR if summed.extent % bfloat16_pairs.PAIR else 1
    padded_steps = bfloat16_pairs.PAIR * padded_pairs if padded_pairs > 1 else odd
    lines = height == rows.extent and padded_rows == 1 and roles.window is not None
    return MatrixTile(height, words, padded_rows, padded_steps, lines) if matrices.pay(height, words) else None


def _cut(extent: int, padded: bool, *, even: bool = False) -> tuple[int, int]:
    """Return the part of an extent that fits into a tile register, and the multiple that it must be padded to.

    The part divides the extent, or its multiple if it is `padded`. Parts are preferably `even` in number.
    """
    divisor = matrices.fitting(extent)
    fewest = -(-extent // matrices.ROWS)
    if not padded or extent <= _PADS * fewest * divisor:
        return divisor, 1
    # Tiles of two matrices in both directions load least: 197×768×3072 took 0.92 of the time with 14 instead of 13.
    count = fewest + (fewest % 2 if even else 0)
    part = -(-extent // (count if count <= _PADS * fewest else fewest))
    return part, part
