"""Generate GPU kernels for every size: one launch per program, chosen on the host by the sizes of the call.

    for T × 2304:                      if T <= 40:                                                    on the host
        Y[T, 2304] = X · Wᵀ    →           blocks (Num₁ + Num₂) · ⌈2304 / columns⌉, as T says:        on the GPU
                                               block < Num₁: rows of the first uKernel; else of the second
                                       else: …

Both operands of a uKernel lie in shared memory. Their last axis is the one along which a thread has neighbouring
outputs (see `spaces/gpu/thread_tile.py`). The next tiles are copied asynchronously while the current one is in use.
Rows and columns beyond the end are read from the last valid one and not written, so the inner loop has no tests, as in
DietCode's local padding. Reduction steps beyond the end are zeros.

Copies are loops over a block's threads inside the loop over its threads, as in TVM's schedules.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Stmt
from felixlike.codegen.annotations import Asynchronous
from felixlike.codegen.build import Builder, ceil_div, function, seq
from felixlike.dynamic.dispatch import Leaf, Tree
from felixlike.dynamic.gpu.context import INDEX, Block, Launch
from felixlike.dynamic.gpu.copies import copies
from felixlike.dynamic.gpu.sums import begun, summed_up, written
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.operator import Operator
from felixlike.spaces.gpu.thread_axes import LANES


def emit_blocks(operator: Operator, tree: Tree[BlockProgram]) -> Func:
    """Return the function that serves every size."""
    tirx, build = _tvm.tirx, Builder(INDEX, LANES)
    programs = in_order(tree)

    def number(tree: Tree[BlockProgram]) -> Any:
        if isinstance(tree, Leaf):
            return build.const(programs.index(tree.program))
        test = operator.symbols[tree.symbol] <= tree.threshold
        return tirx.Select(test, number(tree.below), number(tree.above))

    launches = [_statement(Launch(operator, program)) for program in programs]
    if len(launches) == 1:
        return function(list(operator.func.params), launches[0], operator.func.attrs)
    chosen = tirx.Var("program", INDEX)
    branches = [build.agreed(chosen == n, launch) for n, launch in enumerate(launches)]
    body = seq(tirx.Bind(chosen, number(tree)), *branches)
    return function(list(operator.func.params), body, operator.func.attrs)


def in_order(tree: Tree[BlockProgram]) -> list[BlockProgram]:
    """Return the programs of a tree in the order of their kernels, without duplicates."""
    if isinstance(tree, Leaf):
        return [tree.program]
    return list(dict.fromkeys([*in_order(tree.below), *in_order(tree.above)]))


def _statement(launch: Launch) -> Stmt:
    """Return a launch with its host computations."""
    operator, program, build, tirx = launch.operator, launch.program, launch.build, _tvm.tirx
    host: list[Stmt] = []

    def bound(name: str, value: Any) -> Any:
        variable = tirx.Var(name, INDEX)
        host.append(tirx.Bind(variable, build.const(value) if isinstance(value, int) else value))
        return variable

    size = bound("rows", launch.index(operator.rows.extent))
    many, few = (bound(name, value) for name, value in zip(("many", "few"), _cover(program, size), strict=True))
    tiles = bound("tiles", many + few)
    across = bound("across", ceil_div(launch.index(operator.along.extent), program.columns))
    outer = math.prod((launch.index(axis.extent) for axis in operator.others), start=build.const(1))

    def block(number: Any) -> Stmt:
        threads = build.threads(
            "threadIdx.x", program.threads, lambda t: _block(launch, number, t, tiles, across, many)
        )
        return seq(*map(tirx.AllocBuffer, launch.of_a_block), threads)

    return seq(*host, build.threads("blockIdx.x", outer * across * tiles, block))


def _cover(program: BlockProgram, size: Any) -> tuple[Any, Any]:
    """Return (Num₁, Num₂) for a number of rows, as in `BlockProgram.at`."""
    tirx, large = _tvm.tirx, program.large.rows
    if program.small is None:
        return ceil_div(size, large), 0
    small, divisor = program.small.rows, program.divisor
    few = tirx.floormod(tirx.floordiv(size, divisor) * program.inverse, large // divisor)
    remaining = size - few * small
    exact = tirx.And(tirx.floormod(size, divisor) == 0, remaining >= 0)
    full_blocks = tirx.floordiv(size, large)
    return (
        tirx.Select(exact, tirx.floordiv(remaining, large), full_blocks),
        tirx.Select(exact, few, ceil_div(size - full_blocks * large, small)),
    )


def _block(launch: Launch, number: Any, thread: Any, tiles: Any, across: Any, many: Any) -> Stmt:
    """Return the code of one thread of a block."""
    operator, program, build, tirx = launch.operator, launch.program, launch.build, _tvm.tirx
    statements: list[Stmt] = [tirx.AllocBuffer(launch.sums)]

    def named(name: str, value: Any) -> Any:
        return build.cell(name, value, statements)

    rest = named("rest", tirx.floordiv(number, tiles))
    tile = named("tile", number - rest * tiles)
    quotient = named("quotient", tirx.floordiv(rest, across))
    column = named("panel", rest - quotient * across) * program.columns
    at: dict[Any, Any] = {}
    for axis in reversed(operator.others):
        extent = launch.index(axis.extent)
        at[axis.variable] = launch.place(named(str(axis.variable.name), tirx.floormod(quotient, extent)))
        quotient = named("quotient", tirx.floordiv(quotient, extent))
    large = program.large.rows
    first = Block(at, named("row", tile * large), column, thread)
    if program.small is None:
        return seq(*statements, _tile(launch, program.large, first))
    second = Block(at, named("row", many * large + (tile - many) * program.small.rows), column, thread)
    branches = (
        build.agreed(tile < many, _tile(launch, program.large, first)),
        build.agreed(tile >= many, _tile(launch, program.small, second)),
    )
    return seq(*statements, *branches)


def _tile(launch: Launch, tile: BlockTile, block: Block) -> Stmt:
    """Return one uKernel: sums in registers, the whole reduction, the epilogue."""
    steps = ceil_div(launch.index(launch.steps), tile.depth)
    return seq(begun(launch, tile), _reduction(launch, tile, block, steps), written(launch, tile, block))


def _reduction(launch: Launch, tile: BlockTile, block: Block, steps: Any) -> Stmt:
    """Return the reduction; the next `stages` − 1 steps are copied while one is summed."""
    build, tirx, ahead = launch.build, _tvm.tirx, tile.stages - 1
    zero = build.const(0)

    def alone(k: Any) -> Stmt:
        return seq(copies(launch, tile, block, k, zero), summed_up(launch, tile, block, zero))

    if not ahead:
        return build.loop("step", steps, alone)

    def copied(k: Any) -> Stmt:
        copy = copies(launch, tile, block, k, tirx.floormod(k, tile.stages))
        return tirx.AttrStmt(zero, "async_commit_queue_scope", zero, tirx.IfThenElse(k < steps, copy, None))

    def step(k: Any) -> Stmt:
        return _waited(ahead - 1, seq(copied(k + ahead), summed_up(launch, tile, block, tirx.floormod(k, tile.stages))))

    first = [copied(build.const(k)) for k in range(ahead)]
    return seq(*first, build.loop("step", steps, step, mark=Asynchronous()))


def _waited(in_flight: int, body: Stmt) -> Stmt:
    """Return `body` after all threads have waited until at most `in_flight` copies are pending."""
    tirx = _tvm.tirx
    zero = tirx.const(0, INDEX)
    counted = tirx.AttrStmt(zero, "async_wait_inflight_count", tirx.const(in_flight, INDEX), body)
    return tirx.AttrStmt(zero, "async_wait_queue_scope", zero, counted)
