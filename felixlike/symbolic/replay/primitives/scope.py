"""Replay SetScope: set the memory of a block's output: "global", "shared" or "local"."""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _set_scope(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay SetScope."""
    index, scope = int(instruction.attrs[0]), str(instruction.attrs[1])
    state.schedule.set_scope(state.get(instruction.inputs[0]), index, scope)


PRIMITIVES = {"SetScope": Primitive(_set_scope, needs_regions=True)}
