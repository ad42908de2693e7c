"""A uKernel of a GPU, which is a thread block, and programs of one or two of them (FTuner §III, §V-A).

In: numbers. Out: `BlockTile`, what a block computes and what it takes; `BlockProgram`, how a call's rows are covered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from felixlike.dynamic.combine import Combination, pair
from felixlike.spaces.gpu.thread_axes import LANES

BANK_SHIFT = LANES
"""Words by which rows of a shared tile are shifted against each other, so that copies which turn a tile round do not
wait for one bank."""


@dataclass(frozen=True, slots=True, order=True)
class BlockTile:
    """rows, columns: of the output that a block computes.  depth: steps of the reduction that are in shared memory at a
    time.  own_rows, own_columns: of the output that a thread has in registers.  stages: copies of both shared tiles.
    slices: threads that sum up an output, each a share of every step: where outputs are few, more threads than outputs
    wait for memory."""

    rows: int
    columns: int
    depth: int
    own_rows: int
    own_columns: int
    stages: int = 2
    slices: int = 1

    @property
    def threads(self) -> int:
        """Of a block."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns) * self.slices

    @property
    def sums(self) -> int:
        """Outputs that a thread keeps in registers."""
        return self.own_rows * self.own_columns

    def words(self, side: int) -> int:
        """Elements of one shared tile of an operand with so many rows or columns."""
        return self.depth * (side + BANK_SHIFT)

    def shared_bytes(self, item_bytes: int) -> int:
        """Shared memory of a block."""
        words = self.stages * (self.words(self.rows) + self.words(self.columns))
        return (words + self.part_words) * item_bytes

    @property
    def part_words(self) -> int:
        """Elements of what all slices but the first leave in shared memory."""
        return (self.slices - 1) * self.rows * self.columns

    def __str__(self) -> str:
        slices = f" in {self.slices} slices" if self.slices > 1 else ""
        return f"{self.rows}×{self.columns}×{self.depth} by {self.threads} threads{slices}"


@dataclass(frozen=True, slots=True, order=True)
class BlockProgram:
    """One launch: as many blocks of `large` as there can be, then blocks of `small`; where `small` is None, of `large`
    alone.  Both have as many columns and threads.  What the last block computes beyond the last row is not written."""

    large: BlockTile
    small: BlockTile | None = None

    @property
    def tiles(self) -> tuple[BlockTile, ...]:
        """One or two."""
        return (self.large,) if self.small is None else (self.large, self.small)

    @property
    def columns(self) -> int:
        """Of every block."""
        return self.large.columns

    @property
    def threads(self) -> int:
        """Of every block."""
        return self.large.threads

    def shared_bytes(self, item_bytes: int) -> int:
        """Shared memory of a block: of each operand what the larger tile takes."""
        rows, columns = (max(t.stages * t.words(getattr(t, side)) for t in self.tiles) for side in ("rows", "columns"))
        return (rows + columns + max(t.part_words for t in self.tiles)) * item_bytes

    @property
    def divisor(self) -> int:
        """Of both heights."""
        return 1 if self.small is None else math.gcd(self.large.rows, self.small.rows)

    @property
    def inverse(self) -> int:
        """What `combine.pair` multiplies by to find how many small blocks an exact cover has."""
        if self.small is None:
            return 0
        modulus = self.large.rows // self.divisor
        return pow(self.small.rows // self.divisor, -1, modulus) if modulus > 1 else 0

    def at(self, size: int) -> Combination:
        """How it covers a size: exactly where it can, else with padding in the last block."""
        if self.small is None:
            return Combination(self.large.rows, -(-size // self.large.rows))
        exact = pair(size, self.large.rows, self.small.rows)
        if exact is not None:
            return exact
        many, rest = divmod(size, self.large.rows)
        return Combination(self.large.rows, many, self.small.rows, -(-rest // self.small.rows))

    def __str__(self) -> str:
        return str(self.large) if self.small is None else f"{self.large} + {self.small.rows} rows"
