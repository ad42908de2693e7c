"""Replay AddUnitLoop: a block without loops gets a loop of extent 1, which can be bound."""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.loops import members
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _add(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay AddUnitLoop."""
    target = members(state.get(instruction.inputs[0]))[0]
    state.put(instruction.outputs, [state.schedule.add_unit_loop(target)])


PRIMITIVES = {"AddUnitLoop": Primitive(_add, needs_regions=True)}
