"""Replay Reorder: the loops of one nest change their order; the iterations stay the same."""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.loops import Part
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _reorder(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay Reorder."""
    loops = [state.get(loop) for loop in instruction.inputs]
    if all(isinstance(loop, Part) for loop in loops):
        loops[0].share[:] = loops
        return
    state.schedule.reorder(*loops)


PRIMITIVES = {"Reorder": Primitive(_reorder)}
