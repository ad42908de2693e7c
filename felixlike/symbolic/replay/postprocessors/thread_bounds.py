"""Constrain a thread's tile to its registers, and its unrolled steps to the instruction cache.

    vthread.x v: threadIdx.x t: … unrolled k: unrolled i, j: C[…] += …     v·i·j ≤ accumulators;  v·i·j·k ≤ steps
                                                                           t·(5·v·i·j + 320) ≤ 4·registers

`spaces.gpu.thread_bounds` gives the reasons, and refuses schedules that violate the bounds.
"""

from __future__ import annotations

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike.spaces.gpu.thread_bounds import VIRTUAL, noted_thread_bounds, registers_of
from felixlike.symbolic.expr.expression import const, mul
from felixlike.symbolic.program import Program
from felixlike.symbolic.program.constraints import Constraint
from felixlike.symbolic.replay.postprocessors.gpu_code import extent_of
from felixlike.symbolic.replay.state import ReplayState


def thread_bounds(replay: ReplayState, program: Program) -> tuple[Constraint, ...]:
    """Return the constraints that a schedule's block annotations put on its loops."""
    constraints: list[Constraint] = []
    blocks = _tvm.found(replay.schedule.mod["main"].body, _tvm.s_tir.SBlock)
    bounds_by_block = {str(block.name_hint): noted_thread_bounds(block) for block in blocks}
    for store, path in program.stores():
        bounds = bounds_by_block.get(store.block)
        if bounds is None:
            continue
        name = store.block
        unrolled = [loop for loop in path if loop.kind == "unrolled"]
        outputs = [loop.extent for loop in unrolled if loop.variable not in store.reduction]
        steps = [loop.extent for loop in unrolled if loop.variable in store.reduction]
        tile = mul([const(1), *outputs, *(loop.extent for loop in path if loop.thread == VIRTUAL)])
        most, registers = counted(bounds.accumulators, "accumulator"), counted(bounds.registers, "register")
        constraints += [
            Constraint(tile - bounds.accumulators, f"a thread holds at most {most} of {name}"),
            Constraint(
                registers_of(tile, extent_of(path, "threadIdx.x")) - 4 * bounds.registers,
                f"the threads of {name} use at most {registers}",
            ),
            Constraint(mul([tile, *steps]) - bounds.steps, f"{name} unrolls at most {counted(bounds.steps, 'step')}"),
        ]
    return tuple(constraints)
