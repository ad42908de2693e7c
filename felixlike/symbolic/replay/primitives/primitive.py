"""What a primitive is: a function that replays one instruction, and whether it needs regions to be computable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from felixlike.symbolic.replay.state import ReplayState

ReplayStep: TypeAlias = "Callable[[ReplayState, Any, int], None]"


@dataclass(frozen=True, slots=True)
class Primitive:
    """replay(state, instruction, index of the instruction in its trace).

    needs_regions: TVM reasons about extents in it, so opaque factors must be exchanged for variables before."""

    replay: ReplayStep
    needs_regions: bool = False
