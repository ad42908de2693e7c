"""Constrain tiles of accumulators: they must fit into the vector registers, and use enough of them.

    parallel for … in p: …
        for … in unrolled r, v: for … in vector: C[…] += …     least ≤ r·v ≤ most;  r·v + v < registers;  p even

`spaces.cpu.register_bounds` gives the reasons, and refuses schedules that violate the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike.hardware.vectors import TILE
from felixlike.spaces import Bounds, noted_bounds
from felixlike.symbolic.expr.comparison import minimum
from felixlike.symbolic.expr.expression import Expr, ceildiv, const, mul
from felixlike.symbolic.program import Program
from felixlike.symbolic.program.constraints import Constraint
from felixlike.symbolic.replay.state import ReplayState


def tile_bounds(replay: ReplayState, program: Program) -> tuple[Constraint, ...]:
    """Return the constraints that a schedule's block annotations put on its loops."""
    constraints: list[Constraint] = []
    blocks = _tvm.found(replay.schedule.mod["main"].body, _tvm.s_tir.SBlock)
    # A trace that decomposes a reduction renames its block.
    bounds_by_block = {str(block.name_hint).removesuffix("_update"): noted_bounds(block) for block in blocks}
    for store, path in program.stores():
        bounds = bounds_by_block.get(store.block)
        if bounds is None:
            continue
        name = store.block
        spatial = [loop for loop in path if loop.variable not in store.reduction]
        unrolled = [loop.extent for loop in spatial if loop.kind == "unrolled"]
        tile = mul(unrolled)
        vectors = _loaded(tile, unrolled, bounds)
        iterations = mul(loop.extent for loop in spatial if loop.kind == "parallel")
        constraints += [
            Constraint(
                tile - bounds.most_accumulators,
                f"{name} must fit into {counted(bounds.most_accumulators, 'accumulator')}",
            ),
            Constraint(
                tile + vectors + 1 - bounds.registers,
                f"{name} must fit into {counted(bounds.registers, 'register')}",
            ),
            Constraint(
                bounds.least_accumulators - tile, f"{name} must use {counted(bounds.least_accumulators, 'accumulator')}"
            ),
        ]
        if bounds.least_vectors > 1:
            few = bounds.least_vectors - vectors
            constraints.append(Constraint(few, f"{name} must have {bounds.least_vectors} vectors in a row"))
        if bounds.cores > 1:
            imbalance = 4 * bounds.cores * ceildiv(iterations, bounds.cores) - 5 * iterations
            constraints.append(Constraint(imbalance, f"{counted(bounds.cores, 'core')} must share {name} evenly"))
    return tuple(constraints)


def _loaded(tile: Expr, unrolled: Sequence[Expr], bounds: Bounds) -> Expr:
    """Return the vectors that are loaded for all rows of a tile. A single row uses each vector when it is loaded."""
    if len(unrolled) < 2:
        return const(1)
    if bounds.registers > 2 * TILE.vectors:
        return unrolled[-1]  # those of a single row fit in any case
    return minimum(unrolled[-1], tile - unrolled[-1] + 1)
