"""GetSBlock, GetLoops, GetConsumers, GetProducers: find blocks and loops; the program stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.tvmlib.typing import Instruction

if TYPE_CHECKING:
    from felixlike.symbolic.replay.replay import Replay


def _block(state: Replay, instruction: Instruction, _: int) -> None:
    state.put(instruction.outputs, [state.schedule.get_sblock(str(instruction.attrs[0]))])


def _loops(state: Replay, instruction: Instruction, _: int) -> None:
    state.put(instruction.outputs, state.loops(state.get(instruction.inputs[0])))


def _consumers(state: Replay, instruction: Instruction, _: int) -> None:
    state.put(instruction.outputs, list(state.schedule.get_consumers(state.get(instruction.inputs[0]))))


def _producers(state: Replay, instruction: Instruction, _: int) -> None:
    state.put(instruction.outputs, list(state.schedule.get_producers(state.get(instruction.inputs[0]))))


PRIMITIVES = {
    "GetSBlock": Primitive(_block),
    "GetLoops": Primitive(_loops),
    "GetConsumers": Primitive(_consumers),
    "GetProducers": Primitive(_producers),
}
