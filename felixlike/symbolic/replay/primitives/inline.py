"""ComputeInline, ReverseComputeInline: a block's expression moves into its consumer (or its producer)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.tvmlib.typing import Instruction

if TYPE_CHECKING:
    from felixlike.symbolic.replay.replay import Replay


def _inline(state: Replay, instruction: Instruction, _: int) -> None:
    state.schedule.compute_inline(state.get(instruction.inputs[0]))


def _reverse_inline(state: Replay, instruction: Instruction, _: int) -> None:
    state.schedule.reverse_compute_inline(state.get(instruction.inputs[0]))


PRIMITIVES = {
    "ComputeInline": Primitive(_inline, needs_regions=True),
    "ReverseComputeInline": Primitive(_reverse_inline, needs_regions=True),
}
