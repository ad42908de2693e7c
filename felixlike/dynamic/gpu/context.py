"""State shared by all code of one launch: buffers, position and index conversion.

Input: an operator and a program. Output: `Launch`, `Block`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.codegen.build import Builder
from felixlike.dynamic.gpu.operand import Operand, operands_of, summed
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.operator import Operator
from felixlike.spaces.gpu.thread_axes import LANES

INDEX = "int32"
"""Type of a kernel's own index arithmetic. Memory addresses use the index type of the function."""


@dataclass(frozen=True, slots=True)
class Block:
    """Position of a block.

    Attributes:
        at: Values of the axes other than rows and columns, by variable.
        row: Its first row.
        column: Its first column.
        thread: Index of the thread in the block.
    """

    at: dict[Any, Any]
    row: Any
    column: Any
    thread: Any


class Launch:
    """State of one launch.

    Attributes:
        operator: The operator.
        program: The program of the launch.
        build: Builder of statements with the kernel's own indices.
        memory: Builder of statements with memory indices.
        left: The operand that has the rows.
        right: The operand that has the columns.
        steps: Steps of the reduction.
        sums: Register buffer of a thread.
        shared: Shared-memory buffers of a block, by the name of the operand.
        parts: Shared-memory buffer for partial sums of several threads; None if each output has one thread.
    """

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
        """Return an extent in the index type of the kernel."""
        return self.build.const(extent) if isinstance(extent, int) else _tvm.tirx.Cast(INDEX, extent)

    def place(self, value: Any) -> Any:
        """Convert a kernel index to a memory index."""
        return value if self.memory.index == INDEX else _tvm.tirx.Cast(self.memory.index, value)

    def ends_inside(self, operand: Operand) -> bool:
        """Return whether a tile can have rows or columns beyond the end."""
        extent = operand.main.extent
        return not isinstance(extent, int) or any(extent % side_of(tile, operand) for tile in self.program.tiles)


def side_of(tile: BlockTile, operand: Operand) -> int:
    """Return the rows or columns of a tile, whichever the operand has."""
    return tile.rows if operand.name == "rows" else tile.columns
