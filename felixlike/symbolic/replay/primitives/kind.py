"""Replay Parallel, Vectorize and Unroll: the trace itself states how the iterations of a loop run.

    for i in t0:   →   parallel i in t0:   # by all cores;  vector: by the lanes of a register;  unroll: written out

TVM's loops stay serial during a replay, since TVM requires constant extents. The reader applies the kinds recorded
here.
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.loops import members
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _as(kind: str) -> Primitive:
    """Return the primitive that records a kind of loop."""

    def replay(state: ReplayState, instruction: Instruction, _: int) -> None:
        for member in members(state.get(instruction.inputs[0])):
            state.kinds.append((state.schedule.get(member).loop_var, kind))

    return Primitive(replay, needs_regions=True)


PRIMITIVES = {"Parallel": _as("parallel"), "Vectorize": _as("vector"), "Unroll": _as("unrolled")}
