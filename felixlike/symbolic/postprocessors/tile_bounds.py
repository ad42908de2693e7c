"""The tile of accumulators must fit into the vector registers, fill enough of them, and be worth its loads.

    parallel for … in p: …
        for … in c: for … in unrolled t: for … in vector: C[…] += …        least ≤ t ≤ most;  steps ≤ c;  p even

`spaces.bounds` says why, and refuses schedules that do not keep to it.
"""

from __future__ import annotations

from felixlike.spaces import noted_bounds
from felixlike.symbolic.constraints import Constraint
from felixlike.symbolic.expression import ceildiv, mul
from felixlike.symbolic.program import Loop, Program, Store
from felixlike.symbolic.replay import Replay


def tile_bounds(replay: Replay, program: Program) -> tuple[Constraint, ...]:
    """What the notes on a schedule's blocks ask of its loops."""
    found: list[Constraint] = []
    for store, path in program.stores():
        bounds = noted_bounds(replay.schedule.get(replay.schedule.get_sblock(store.block)))
        if bounds is None:
            continue
        name = store.block
        spatial = [loop for loop in path if loop.variable not in store.reduction]
        tile = mul(loop.extent for loop in spatial if loop.kind == "unrolled")
        tasks = mul(loop.extent for loop in spatial if loop.kind == "parallel")
        steps = mul(loop.extent for loop in _within(store, path))
        found += [
            Constraint(
                tile - bounds.most_accumulators, f"{name} must fit into {bounds.most_accumulators} accumulators"
            ),
            Constraint(bounds.least_accumulators - tile, f"{name} must use {bounds.least_accumulators} accumulators"),
            Constraint(bounds.least_steps - steps, f"{name} must add up {bounds.least_steps} products at a time"),
        ]
        if bounds.cores > 1:
            waiting = 4 * bounds.cores * ceildiv(tasks, bounds.cores) - 5 * tasks
            found.append(Constraint(waiting, f"{bounds.cores} cores must share {name} evenly"))
    return tuple(found)


def _within(store: Store, path: tuple[Loop, ...]) -> list[Loop]:
    """The reductions inside the innermost serial loop that is none: while they run, the tile stays in registers."""
    serial = [i for i, loop in enumerate(path) if loop.variable not in store.reduction and not loop.kind]
    return [loop for loop in path[max(serial, default=-1) + 1 :] if loop.variable in store.reduction]
