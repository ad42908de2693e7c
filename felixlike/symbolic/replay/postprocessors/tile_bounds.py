"""The tile of accumulators must fit into the vector registers, and fill enough of them.

    parallel for … in p: …
        for … in unrolled r, v: for … in vector: C[…] += …     least ≤ r·v ≤ most;  r·v + v < registers;  p even

`spaces.bounds` says why, and refuses schedules that do not keep to it.
"""

from __future__ import annotations

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike.spaces import noted_bounds
from felixlike.symbolic.expr.expression import ceildiv, mul
from felixlike.symbolic.program import Program
from felixlike.symbolic.program.constraints import Constraint
from felixlike.symbolic.replay.state import ReplayState


def tile_bounds(replay: ReplayState, program: Program) -> tuple[Constraint, ...]:
    """What the notes on a schedule's blocks ask of its loops."""
    found: list[Constraint] = []
    blocks = _tvm.found(replay.schedule.mod["main"].body, _tvm.s_tir.SBlock)
    noted = {str(block.name_hint): noted_bounds(block) for block in blocks}
    for store, path in program.stores():
        bounds = noted.get(store.block)
        if bounds is None:
            continue
        name = store.block
        spatial = [loop for loop in path if loop.variable not in store.reduction]
        unrolled = [loop.extent for loop in spatial if loop.kind == "unrolled"]
        tile = mul(unrolled)
        held = unrolled[-1:] if len(unrolled) > 1 else []  # one row uses each vector as it is loaded
        iterations = mul(loop.extent for loop in spatial if loop.kind == "parallel")
        found += [
            Constraint(
                tile - bounds.most_accumulators,
                f"{name} must fit into {counted(bounds.most_accumulators, 'accumulator')}",
            ),
            Constraint(
                tile + mul(held) + 1 - bounds.registers, f"{name} must fit into {counted(bounds.registers, 'register')}"
            ),
            Constraint(
                bounds.least_accumulators - tile, f"{name} must use {counted(bounds.least_accumulators, 'accumulator')}"
            ),
        ]
        if bounds.cores > 1:
            waiting = 4 * bounds.cores * ceildiv(iterations, bounds.cores) - 5 * iterations
            found.append(Constraint(waiting, f"{counted(bounds.cores, 'core')} must share {name} evenly"))
    return tuple(found)
