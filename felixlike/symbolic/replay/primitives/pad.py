"""Replay PadEinsum: the operands of a product are copied to padded ones, so that tiles divide its axes.

for i in 197, k: C[i] += A[i, k] · B[k]   →   for i in 198, k: A_pad[i, k] = A[i, k] if i < 197 else 0
                                              for i in 198, k: C_pad[i] += A_pad[i, k] · B[k]
                                              for i in 197: C[i] = C_pad[i]
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _pad(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay PadEinsum."""
    state.schedule.pad_einsum(state.get(instruction.inputs[0]), [int(multiple) for multiple in instruction.attrs[0]])


PRIMITIVES = {"PadEinsum": Primitive(_pad, needs_regions=True)}
