"""What all code of one launch shares: its buffers, its place, how numbers become indices.

In: an operator and a program. Out: `Launch`, `Block`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.dynamic.build import Builder
from felixlike.dynamic.gpu.operand import Operand, operands_of, summed
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.operator import Operator
from felixlike.spaces.gpu.thread_axes import LANES

INDEX = "int32"
"""Of a kernel's own arithmetic; places in memory are computed in the type that the function has."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block's place.  at: values of the axes that are neither rows nor columns.  row, column: its first.  thread: in
    it."""

    at: dict[Any, Any]
    row: Any
    column: Any
    thread: Any


class Launch:
    """build, memory: statements with the kernel's own indices, and with those of memory.  left, right: the operands
    that have the rows and the columns.  sums: of a thread.  shared: of a block, by the operands' names.  parts: of a
    block, where several threads sum up parts of an output; None where none do.  steps: of the reduction."""

    def __init__(self, operator: Operator, program: BlockProgram) -> None:
        self.operator, self.program = operator, program
        self.build = Builder(INDEX, LANES, "local")
        self.memory = Builder(str(operator.rows.variable.ty.dtype), LANES)
        self.left, self.right = operands_of(operator)
        self.steps = summed(operator)
        tirx, tiles = _tvm.tirx, program.tiles
        self.sums = tirx.decl_buffer((max(tile.sums for tile in tiles),), operator.dtype, "sums", scope="local")
        self.shared = {
            operand.name: tirx.decl_buffer(
                (max(tile.stages * tile.words(side_of(tile, operand)) for tile in tiles),),
                operand.dtype,
                f"{operand.name}_shared",
                scope="shared",
            )
            for operand in (self.left, self.right)
        }
        parts = max(tile.part_words for tile in tiles)
        self.parts = tirx.decl_buffer((parts,), operator.dtype, "parts", scope="shared") if parts else None

    @property
    def of_a_block(self) -> list[Any]:
        """The buffers in shared memory."""
        return [*self.shared.values(), *([] if self.parts is None else [self.parts])]

    def index(self, extent: Any) -> Any:
        """An extent as the kernel computes with it."""
        return self.build.const(extent) if isinstance(extent, int) else _tvm.tirx.Cast(INDEX, extent)

    def place(self, value: Any) -> Any:
        """An index of the kernel's as one of memory."""
        return value if self.memory.index == INDEX else _tvm.tirx.Cast(self.memory.index, value)

    def ends_inside(self, operand: Operand) -> bool:
        """Whether a tile may have rows or columns that do not exist."""
        extent = operand.main.extent
        return not isinstance(extent, int) or any(extent % side_of(tile, operand) for tile in self.program.tiles)


def side_of(tile: BlockTile, operand: Operand) -> int:
    """Rows or columns of a tile, whichever an operand has."""
    return tile.rows if operand.name == "rows" else tile.columns
