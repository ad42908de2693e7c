"""What a primitive is: a function that replays one instruction, and whether it needs regions to be computable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from felixlike.symbolic.replay.replay import Replay

ReplayStep: TypeAlias = "Callable[[Replay, Any, int], None]"


@dataclass(frozen=True, slots=True)
class Primitive:
    """replay(state, instruction, index of the instruction in its trace).

    needs_regions: TVM reasons about extents in it, so opaque factors must be exchanged for variables before."""

    replay: ReplayStep
    needs_regions: bool = False
