"""Replay Fuse: several loops become one whose extent is their product.

    for i in a:            for f in a·b:
        for j in b:   →        …[f // b, f % b]
            …[i, j]

On GPUs, loops are fused to be bound to threads, or split across them; on CPUs, to run in parallel. These loops stay
separate here and are recorded as one: indices stay affine, and TVM computes exact regions under them. Where a CPU's
rule fuses loops only to split them again, or to look up the result later, TVM fuses them; indices then contain f // b
and f % b, which most later steps do not support.
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.loops import Part
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _fuse(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay Fuse."""
    loops = [state.get(loop) for loop in instruction.inputs]
    (output,) = instruction.outputs
    if not state.binds_threads and (state.splits(output) or not state.names(output)):
        fused = state.schedule.fuse(*loops, preserve_unit_iters=bool(instruction.attrs[0]))
    elif len(loops) == 1 and isinstance(loops[0], Part):
        fused = loops[0]
    else:
        fused = state.fuse(loops)
    state.put(instruction.outputs, [fused])


PRIMITIVES = {"Fuse": Primitive(_fuse, needs_regions=True)}
