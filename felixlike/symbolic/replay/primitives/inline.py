"""Replay ComputeInline and ReverseComputeInline: a block's expression moves into its consumer (or its producer)."""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _inline(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay ComputeInline."""
    state.schedule.compute_inline(state.get(instruction.inputs[0]))


def _reverse_inline(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay ReverseComputeInline."""
    state.schedule.reverse_compute_inline(state.get(instruction.inputs[0]))


PRIMITIVES = {
    "ComputeInline": Primitive(_inline, needs_regions=True),
    "ReverseComputeInline": Primitive(_reverse_inline, needs_regions=True),
}
