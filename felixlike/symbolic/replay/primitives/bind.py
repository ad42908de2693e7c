"""Replay Bind: threads run the iterations of a loop; loops recorded as fused are all bound to the same threads.

for f in a·b:   →   a·b blocks (or threads), each for one (i, j)
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.loops import Part, members
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _bind(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay Bind."""
    loop, thread = state.get(instruction.inputs[0]), str(instruction.attrs[0])
    if isinstance(loop, Part):
        loop.kind = thread
        return
    for member in members(loop):
        state.schedule.bind(member, thread)


PRIMITIVES = {"Bind": Primitive(_bind, needs_regions=True)}
