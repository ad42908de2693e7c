"""Replay a MetaSchedule trace inside TVM with variables in place of tile factors, on unpatched TVM.

Input: a task's module, a trace, its tile variables, and the chosen compute locations. Output: a live TVM Schedule whose
loops have symbolic extents, before postprocessors. TVM itself computes every region; no primitive is reimplemented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Module, Trace
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.program.variables import Variable
from felixlike.symbolic.replay.primitives import PRIMITIVES
from felixlike.symbolic.replay.state import ReplayState


def replay(
    module: Module,
    target: Any,
    trace: Trace,
    variables: Sequence[Variable],
    locations: Sequence[int],
    *,
    numbers: bool = False,
) -> ReplayState:
    """Replay a trace and return the resulting state.

    Args:
        module: The task's module.
        target: The task's target.
        trace: The trace.
        variables: The sketch's variables.
        locations: The chosen compute locations, in the order of the trace.
        numbers: Whether every variable has only one value; see `ReplayState`.

    Raises:
        UnsupportedSketch: If an instruction is unknown, or TVM refuses it on symbolic loops.
    """
    state = ReplayState(module, target, trace, variables, locations, numbers=numbers)
    for index, instruction in enumerate(trace.insts):
        name = str(instruction.kind.name)
        primitive = PRIMITIVES.get(name)
        if primitive is None:
            raise UnsupportedSketch(f"unsupported instruction {name}", where=f"step {index}")
        if primitive.needs_regions:
            state.settle()
        try:
            primitive.replay(state, instruction, index)
        except _tvm.TVM_ERRORS as error:
            if not _tvm.refusal(error):
                raise
            reason = str(error).strip().splitlines()
            raise UnsupportedSketch(
                f"TVM refused {name} on symbolic loops: {reason[-1][:160] if reason else ''}", where=f"step {index}"
            ) from error
    state.settle()
    return state
