"""A thread's tile must fit into its registers, and what is unrolled into the instruction cache.

    vthread.x v: threadIdx.x t: … unrolled k: unrolled i, j: C[…] += …     v·i·j ≤ accumulators;  v·i·j·k ≤ steps
                                                                           t·(5·v·i·j + 320) ≤ 4·registers

`spaces.thread_bounds` says why, and refuses schedules that do not keep to it.
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
    """What the notes on a schedule's blocks ask of its loops."""
    found: list[Constraint] = []
    blocks = _tvm.found(replay.schedule.mod["main"].body, _tvm.s_tir.SBlock)
    noted = {str(block.name_hint): noted_thread_bounds(block) for block in blocks}
    for store, path in program.stores():
        bounds = noted.get(store.block)
        if bounds is None:
            continue
        name = store.block
        unrolled = [loop for loop in path if loop.kind == "unrolled"]
        own = [loop.extent for loop in unrolled if loop.variable not in store.reduction]
        steps = [loop.extent for loop in unrolled if loop.variable in store.reduction]
        tile = mul([const(1), *own, *(loop.extent for loop in path if loop.thread == VIRTUAL)])
        most, registers = counted(bounds.accumulators, "accumulator"), counted(bounds.registers, "register")
        found += [
            Constraint(tile - bounds.accumulators, f"a thread has at most {most} of {name}"),
            Constraint(
                registers_of(tile, extent_of(path, "threadIdx.x")) - 4 * bounds.registers,
                f"the threads of {name} share {registers}",
            ),
            Constraint(mul([tile, *steps]) - bounds.steps, f"{name} unrolls at most {counted(bounds.steps, 'step')}"),
        ]
    return tuple(found)
