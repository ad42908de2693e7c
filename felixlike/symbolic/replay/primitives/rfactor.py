"""Replay RFactor: a reduction is split in two, so that partial results can be computed in parallel or in vectors.

for k_0, k_1: B += A[k_0, k_1]    →    for k_0, k_1: B_rf[k_0] += A[k_0, k_1]
                                       for k_0: B += B_rf[k_0]
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _rfactor(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay RFactor."""
    loop = state.get(instruction.inputs[0])
    state.put(instruction.outputs, [state.schedule.rfactor(loop, int(instruction.attrs[0]))])


PRIMITIVES = {"RFactor": Primitive(_rfactor, needs_regions=True)}
