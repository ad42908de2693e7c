"""uKernels of a GPU, which are thread blocks, and programs of one or two of them (FTuner §III, §V-A).

`BlockTile` describes the tile and the resources of a block, `BlockProgram` how the rows of a call are covered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from felixlike.dynamic.combine import Combination, pair
from felixlike.spaces.gpu.thread_axes import LANES

BANK_SHIFT = LANES
"""Padding between rows of a shared tile in words. It avoids bank conflicts of copies that transpose a tile."""


@dataclass(frozen=True, slots=True, order=True)
class BlockTile:
    """The tile of a thread block.

    Attributes:
        rows: Output rows of a block.
        columns: Output columns of a block.
        depth: Reduction steps in shared memory at a time.
        own_rows: Output rows that a thread keeps in registers.
        own_columns: Output columns that a thread keeps in registers.
        stages: Buffers of both shared tiles.
        slices: Threads that share the sum of an output. If there are few outputs, more threads hide memory latency.
    """

    rows: int
    columns: int
    depth: int
    own_rows: int
    own_columns: int
    stages: int = 2
    slices: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns) * self.slices

    @property
    def sums(self) -> int:
        """Outputs that a thread keeps in registers."""
        return self.own_rows * self.own_columns

    def words(self, side: int) -> int:
        """Return the elements of one shared tile of an operand with `side` rows or columns."""
        return self.depth * (side + BANK_SHIFT)

    def shared_bytes(self, item_bytes: int) -> int:
        """Return the bytes of shared memory of a block."""
        words = self.stages * (self.words(self.rows) + self.words(self.columns))
        return (words + self.part_words) * item_bytes

    @property
    def part_words(self) -> int:
        """Elements of the partial sums that all slices but the first leave in shared memory."""
        return (self.slices - 1) * self.rows * self.columns

    def __str__(self) -> str:
        slices = f" in {self.slices} slices" if self.slices > 1 else ""
        return f"{self.rows}×{self.columns}×{self.depth} by {self.threads} threads{slices}"


@dataclass(frozen=True, slots=True, order=True)
class BlockProgram:
    """One launch: as many blocks of `large` as possible, then blocks of `small`; only `large` if `small` is None.

    Both have the same number of columns and threads. Rows beyond the end in the last block are not written.
    """

    large: BlockTile
    small: BlockTile | None = None

    @property
    def tiles(self) -> tuple[BlockTile, ...]:
        """One or two tiles."""
        return (self.large,) if self.small is None else (self.large, self.small)

    @property
    def columns(self) -> int:
        """Columns of every block."""
        return self.large.columns

    @property
    def threads(self) -> int:
        """Threads of every block."""
        return self.large.threads

    def shared_bytes(self, item_bytes: int) -> int:
        """Return the bytes of shared memory of a block: for each operand the larger tile."""
        rows, columns = (max(t.stages * t.words(getattr(t, side)) for t in self.tiles) for side in ("rows", "columns"))
        return (rows + columns + max(t.part_words for t in self.tiles)) * item_bytes

    @property
    def divisor(self) -> int:
        """Greatest common divisor of both heights, 1 for a single tile."""
        return 1 if self.small is None else math.gcd(self.large.rows, self.small.rows)

    @property
    def inverse(self) -> int:
        """The inverse by which `combine.pair` computes the number of small blocks of an exact cover."""
        if self.small is None:
            return 0
        modulus = self.large.rows // self.divisor
        return pow(self.small.rows // self.divisor, -1, modulus) if modulus > 1 else 0

    def at(self, size: int) -> Combination:
        """Return its cover of a size: exact if possible, else with padding in the last block."""
        if self.small is None:
            return Combination(self.large.rows, -(-size // self.large.rows))
        exact = pair(size, self.large.rows, self.small.rows)
        if exact is not None:
            return exact
        many, rest = divmod(size, self.large.rows)
        return Combination(self.large.rows, many, self.small.rows, -(-rest // self.small.rows))

    def __str__(self) -> str:
        return str(self.large) if self.small is None else f"{self.large} + {self.small.rows} rows"
