"""Replay GetSBlock, GetLoops, GetConsumers and GetProducers: find blocks and loops without changing the program."""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _block(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay GetSBlock."""
    state.put(instruction.outputs, [state.schedule.get_sblock(str(instruction.attrs[0]))])


def _loops(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay GetLoops."""
    state.put(instruction.outputs, state.loops(state.get(instruction.inputs[0])))


def _consumers(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay GetConsumers."""
    state.put(instruction.outputs, list(state.schedule.get_consumers(state.get(instruction.inputs[0]))))


def _producers(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay GetProducers."""
    state.put(instruction.outputs, list(state.schedule.get_producers(state.get(instruction.inputs[0]))))


PRIMITIVES = {
    "GetSBlock": Primitive(_block),
    "GetLoops": Primitive(_loops),
    "GetConsumers": Primitive(_consumers),
    "GetProducers": Primitive(_producers),
}
