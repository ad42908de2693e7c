"""The loops that a contraction's tile on a GPU is made of, and what is done with them whatever the tile's geometry.

In: a schedule. Out: loops that are split, bound to blocks and threads, overlapped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from felixlike._tvm.typing import LoopRef, Schedule
from felixlike.codegen.annotations import Asynchronous


@dataclass(slots=True)
class Loops:
    """The loops that a tile is made of, outermost first at every level.  own: of a thread; those of them that are
    `written_out` are unrolled."""

    blocks: list[Any] = field(default_factory=list)
    virtual: list[Any] = field(default_factory=list)
    threads: list[Any] = field(default_factory=list)
    outer: list[Any] = field(default_factory=list)
    inner: list[Any] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)
    step: list[Any] = field(default_factory=list)
    """A loop over the reduction that one instruction does, with the last of a thread's own: of warps' tiles only."""

    @property
    def all(self) -> list[Any]:
        """In their order."""
        return [*self.blocks, *self.virtual, *self.threads, *self.outer, *self.inner, *self.own, *self.step]


def bind(schedule: Schedule, loops: Loops) -> Any:
    """Bind the loops around a tile; the loop over threads."""
    for loop in (loops.blocks, loops.virtual):
        if loop:
            schedule.bind(schedule.fuse(*loop), "blockIdx.x" if loop is loops.blocks else "vthread.x")
    group = schedule.fuse(*loops.threads)
    schedule.bind(group, "threadIdx.x")
    return group


def overlap(schedule: Schedule, loop: LoopRef, stages: int) -> None:
    """Let both copies of a step begin so many steps before what is computed from them."""
    schedule.annotate(loop, "software_pipeline_stage", [0, 0, stages - 1])
    schedule.annotate(loop, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(loop, "software_pipeline_async_stages", [0])
    Asynchronous().put(schedule, loop)


def sampled(schedule: Schedule, loop: LoopRef, parts: int, most: int) -> list[Any]:
    """The loop split into sampled factors, the innermost of at most `most`."""
    found = schedule.sample_perfect_tile(loop, n=parts, max_innermost_factor=most)
    return list(schedule.split(loop, found))
