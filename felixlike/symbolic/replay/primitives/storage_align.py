"""Replay StorageAlign: the stride of a buffer's rows becomes an offset above a multiple of a factor.

    alloc A_shared[8, 32]  in steps of [32, 1]    →    alloc A_shared[8, 32]  in steps of [33, 1]

with factor 32 and offset 1 on dimension 0, so that threads which access a column use different banks. TVM annotates the
block that writes the buffer; loops and indices stay the same. Strides, and therefore cache lines and allocated bytes,
are computed after the buffer is compacted (`Buffer.steps`).
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState

ALIGNED = "buffer_dim_align"
"""Key of a block's annotation (number of the written buffer, dimension, factor, offset)."""


def _align(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay StorageAlign."""
    index, axis, factor, offset = (int(attribute) for attribute in instruction.attrs)
    state.schedule.storage_align(state.get(instruction.inputs[0]), index, axis, factor, offset)


PRIMITIVES = {"StorageAlign": Primitive(_align, needs_regions=True)}
