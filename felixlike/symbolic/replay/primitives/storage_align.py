"""StorageAlign: rows of a buffer begin at a step that leaves an offset over multiples of a factor.

    alloc A_shared[8, 32]  in steps of [32, 1]    →    alloc A_shared[8, 32]  in steps of [33, 1]

with factor 32 and offset 1 on dimension 0, so that threads which walk down a column meet different banks. TVM keeps a
note on the block that writes the buffer; loops and indices stay as they are. Steps, hence cache lines and what is
allocated, follow once the buffer is as small as its accesses allow (`Buffer.steps`).
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState

ALIGNED = "buffer_dim_align"
"""Notes (number of the written buffer, dimension, factor, offset) on a block."""


def _align(state: ReplayState, instruction: Instruction, _: int) -> None:
    index, axis, factor, offset = (int(attribute) for attribute in instruction.attrs)
    state.schedule.storage_align(state.get(instruction.inputs[0]), index, axis, factor, offset)


PRIMITIVES = {"StorageAlign": Primitive(_align, needs_regions=True)}
