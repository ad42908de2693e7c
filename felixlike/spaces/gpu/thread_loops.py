"""Hold the loops of a contraction's tile on a GPU, and apply what does not depend on the tile's geometry.

Input: a schedule. Output: loops that are split, bound to blocks and threads, and pipelined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from felixlike._tvm.typing import LoopRef, Schedule
from felixlike.codegen.annotations import Asynchronous


@dataclass(slots=True)
class Loops:
    """The loops of a tile, outermost first at every level.

    Attributes:
        blocks: Loops over blocks.
        virtual: Loops over virtual threads.
        threads: Loops over threads.
        outer: Reduction loops over steps of a block.
        inner: Reduction loops within a step.
        own: Loops of a thread.
        step: For tiles of warps only: a reduction loop that one instruction computes, after the last loops of a thread.
    """

    blocks: list[Any] = field(default_factory=list)
    virtual: list[Any] = field(default_factory=list)
    threads: list[Any] = field(default_factory=list)
    outer: list[Any] = field(default_factory=list)
    inner: list[Any] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)
    step: list[Any] = field(default_factory=list)

    @property
    def all(self) -> list[Any]:
        """Return all loops, outermost first."""
        return [*self.blocks, *self.virtual, *self.threads, *self.outer, *self.inner, *self.own, *self.step]


def bind(schedule: Schedule, loops: Loops) -> Any:
    """Bind the loops around a tile to blocks and threads and return the loop over threads."""
    for loop in (loops.blocks, loops.virtual):
        if loop:
            schedule.bind(schedule.fuse(*loop), "blockIdx.x" if loop is loops.blocks else "vthread.x")
    group = schedule.fuse(*loops.threads)
    schedule.bind(group, "threadIdx.x")
    return group


def overlap(schedule: Schedule, loop: LoopRef, stages: int) -> None:
    """Start the copies of a step `stages` - 1 steps before the computation that reads them."""
    schedule.annotate(loop, "software_pipeline_stage", [0, 0, stages - 1])
    schedule.annotate(loop, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(loop, "software_pipeline_async_stages", [0])
    Asynchronous().put(schedule, loop)
