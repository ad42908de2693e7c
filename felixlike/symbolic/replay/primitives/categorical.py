"""Replay SampleCategorical: one of a few numbers; on CPUs always the largest number of unrolled steps."""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _sample(state: ReplayState, instruction: Instruction, index: int) -> None:
    """Replay SampleCategorical."""
    (variable,) = state.groups[index]
    state.put(instruction.outputs, [variable.expression])


PRIMITIVES = {"SampleCategorical": Primitive(_sample)}
