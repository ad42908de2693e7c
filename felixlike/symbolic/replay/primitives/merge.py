"""Replay Merge and DecomposeReduction: consecutive nests become one; initial values get a nest of their own.

for i: A[i] = …              for i:                      for i:                          for i: S[i] = 0
for i: B[i] = f(A[i])   →        A[i] = …         and        for k: S[i] += …      →     for i: for k: S[i] += …
                                 B[i] = f(A[i])
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Instruction, Schedule
from felixlike.symbolic.replay.loops import members
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _merge(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay Merge; of loops recorded as fused, TVM merges the innermost ones and their common outer loops."""
    loops = [members(state.get(loop)) for loop in instruction.inputs]
    merged = state.schedule.merge(*(loop[-1] for loop in loops))
    result = merged if len(loops[0]) == 1 else state.fuse(_nest(state.schedule, merged)[-len(loops[0]) :])
    state.put(instruction.outputs, [result])


def _nest(schedule: Schedule, loop: Any) -> list[Any]:
    """Return a loop and those around it, outermost first, found from a block below it with a unique name."""
    names = Counter(str(b.name_hint) for b in _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock))
    below = [str(b.name_hint) for b in _tvm.found(schedule.get(loop).body, _tvm.s_tir.SBlock)]
    loops = schedule.get_loops(schedule.get_sblock(next(name for name in below if names[name] == 1)))
    position = next(i for i, other in enumerate(loops) if schedule.get(other).same_as(schedule.get(loop)))
    return list(loops[: position + 1])


def _decompose(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay DecomposeReduction."""
    block, loop = (state.get(v) for v in instruction.inputs)
    initial = state.schedule.decompose_reduction(block, loop)
    state.initial.add(str(state.schedule.get(initial).name_hint))
    state.put(instruction.outputs, [initial])


PRIMITIVES = {
    "Merge": Primitive(_merge, needs_regions=True),
    "DecomposeReduction": Primitive(_decompose, needs_regions=True),
}
