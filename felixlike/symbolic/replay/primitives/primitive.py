"""Define primitives: a function that replays one instruction, and whether it needs computable regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from felixlike.symbolic.replay.state import ReplayState

ReplayStep: TypeAlias = "Callable[[ReplayState, Any, int], None]"
"""A function of the state, the instruction, and the instruction's index in its trace."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """Describe how an instruction is replayed.

    Attributes:
        replay: The function that replays it.
        needs_regions: Whether TVM reasons about extents in it, so that opaque factors must be replaced by variables
            before.
    """

    replay: ReplayStep
    needs_regions: bool = False
