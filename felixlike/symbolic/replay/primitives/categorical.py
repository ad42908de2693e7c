"""SampleCategorical: one of a few numbers; on CPUs always the largest number of unrolled steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.tvmlib.typing import Instruction

if TYPE_CHECKING:
    from felixlike.symbolic.replay.replay import Replay


def _sample(state: Replay, instruction: Instruction, index: int) -> None:
    (variable,) = state.groups[index]
    state.put(instruction.outputs, [variable.expression])


PRIMITIVES = {"SampleCategorical": Primitive(_sample)}
