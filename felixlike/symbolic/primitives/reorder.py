"""Reorder: loops of one nest in another order, the same iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from felixlike.symbolic.primitives.primitive import Primitive

if TYPE_CHECKING:
    from felixlike.symbolic.replay import Replay


def _reorder(state: Replay, instruction: Any, _: int) -> None:
    state.schedule.reorder(*(state.get(loop) for loop in instruction.inputs))


PRIMITIVES = {"Reorder": Primitive(_reorder)}
