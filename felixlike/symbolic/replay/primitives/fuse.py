"""Fuse: several loops become one whose extent is their product.

    for i in a:            for f in a·b:
        for j in b:   →        …[f // b, f % b]
            …[i, j]

On GPUs loops are fused to be bound to threads, or to be shared out among them; on CPUs to be run in parallel. They
then stay apart here and are remembered as one: indices stay affine, and TVM computes exact regions under them. Where a
CPU's rule fuses loops only to split them anew, or to look for the result later, they are fused indeed; indices then
hold f // b and f % b, which most later steps cannot use.
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.replay.loops import Part
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _fuse(state: ReplayState, instruction: Instruction, _: int) -> None:
    loops = [state.get(loop) for loop in instruction.inputs]
    (whole,) = instruction.outputs
    if not state.binds_threads and (state.splits(whole) or not state.names(whole)):
        fused = state.schedule.fuse(*loops, preserve_unit_iters=bool(instruction.attrs[0]))
    elif len(loops) == 1 and isinstance(loops[0], Part):
        fused = loops[0]
    else:
        fused = state.fuse(loops)
    state.put(instruction.outputs, [fused])


PRIMITIVES = {"Fuse": Primitive(_fuse, needs_regions=True)}
