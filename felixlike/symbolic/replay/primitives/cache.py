"""Replay CacheRead and CacheWrite: a block reads from (or writes to) a new buffer, and a copy block is added.

C[…] = …        →        C_global[…] = …;   C[…] = C_global[…]
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _read(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay CacheRead."""
    index, scope = int(instruction.attrs[0]), str(instruction.attrs[1])
    block, consumers = state.get(instruction.inputs[0]), [state.get(consumer) for consumer in instruction.inputs[1]]
    state.put(instruction.outputs, [state.schedule.cache_read(block, index, scope, consumers or None)])


def _write(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay CacheWrite."""
    index, scope = int(instruction.attrs[0]), str(instruction.attrs[1])
    state.put(instruction.outputs, [state.schedule.cache_write(state.get(instruction.inputs[0]), index, scope)])


PRIMITIVES = {"CacheRead": Primitive(_read, needs_regions=True), "CacheWrite": Primitive(_write, needs_regions=True)}
