"""Kernels for every size on a GPU: one launch for each program, chosen on the host by the sizes of the call.

    for T × 2304:                      if T <= 40:                                                    on the host
        Y[T, 2304] = X · Wᵀ    →           blocks (Num₁ + Num₂) · ⌈2304 / columns⌉, as T says:        on the GPU
                                               block < Num₁: rows of the first uKernel; else of the second
                                       else: …

Of each uKernel both operands lie in shared memory with the axis last along which a thread has neighbouring outputs
(`spaces/thread_tile.py` says why); the next tiles are copied, asynchronously, while one is in use. Rows and columns
that do not exist are read from the last one that does, and not written: no test is in the loop that computes, as with
DietCode's local padding. Steps of the reduction beyond its end are zeros.

Copies are loops over a block's threads inside of the loop over its threads, as TVM's schedules have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from felixlike import tvmlib
from felixlike.codegen.marks import Asynchronous
from felixlike.dynamic.build import Builder, ceil_div, function, seq
from felixlike.dynamic.dispatch import Leaf, Tree
from felixlike.dynamic.gpu.operand import Operand, operands_of, summed
from felixlike.dynamic.gpu.tile import BANK_SHIFT, BlockProgram, BlockTile
from felixlike.dynamic.operator import Operator
from felixlike.spaces.thread_axes import LANES, widest
from felixlike.tvmlib.typing import Buffer, Func, Stmt

INDEX = "int32"
"""Of a kernel's own arithmetic; places in memory are computed in the type that the function has."""

_MOST_UNROLLED = 16
"""Copies of a thread that are written out."""


def emit_blocks(operator: Operator, tree: Tree[BlockProgram]) -> Func:
    """The function that serves every size."""
    tirx, build = tvmlib.tirx, Builder(INDEX, LANES)
    programs = list(dict.fromkeys(_in_order(tree)))

    def number(tree: Tree[BlockProgram]) -> Any:
        if isinstance(tree, Leaf):
            return build.const(programs.index(tree.program))
        test = operator.symbols[tree.symbol] <= tree.threshold
        return tirx.Select(test, number(tree.below), number(tree.above))

    launches = [_Launch(operator, program).statement() for program in programs]
    if len(launches) == 1:
        return function(list(operator.func.params), launches[0], operator.func.attrs)
    chosen = tirx.Var("program", INDEX)
    each = [build.agreed(chosen == n, launch) for n, launch in enumerate(launches)]
    body = seq(tirx.Bind(chosen, number(tree)), *each)
    return function(list(operator.func.params), body, operator.func.attrs)


def _in_order(tree: Tree[BlockProgram]) -> list[BlockProgram]:
    """The programs of a tree, from small sizes to large ones."""
    return [tree.program] if isinstance(tree, Leaf) else [*_in_order(tree.below), *_in_order(tree.above)]


@dataclass(frozen=True, slots=True)
class _Block:
    """A block's place.  at: values of the axes that are neither rows nor columns.  row, column: its first.  thread: in
    it."""

    at: dict[Any, Any]
    row: Any
    column: Any
    thread: Any


class _Launch:
    """One kernel in the making."""

    def __init__(self, operator: Operator, program: BlockProgram) -> None:
        self.operator, self.program = operator, program
        self.build = Builder(INDEX, LANES, "local")
        self.memory = Builder(str(operator.rows.variable.ty.dtype), LANES)
        self.left, self.right = operands_of(operator)
        tirx = tvmlib.tirx
        sums = max(tile.sums for tile in program.tiles)
        self.sums = tirx.decl_buffer((sums,), operator.dtype, "sums", scope="local")
        self.shared = {
            operand.name: tirx.decl_buffer(
                (max(t.stages * t.words(_side(t, operand)) for t in program.tiles),),
                operand.dtype,
                f"{operand.name}_shared",
                scope="shared",
            )
            for operand in (self.left, self.right)
        }
        self.steps = summed(operator)

    def statement(self) -> Stmt:
        """The launch, with what the host computes for it."""
        operator, program, build, tirx = self.operator, self.program, self.build, tvmlib.tirx
        host: list[Stmt] = []

        def bound(name: str, value: Any) -> Any:
            variable = tirx.Var(name, INDEX)
            host.append(tirx.Bind(variable, build.const(value) if isinstance(value, int) else value))
            return variable

        size = bound("rows", self._index(operator.rows.extent))
        many, few = (bound(name, value) for name, value in zip(("many", "few"), self._cover(size), strict=True))
        tiles = bound("tiles", many + few)
        across = bound("across", ceil_div(self._index(operator.along.extent), program.columns))
        outer = math.prod((self._index(axis.extent) for axis in operator.others), start=build.const(1))

        def block(number: Any) -> Stmt:
            return build.threads(
                "threadIdx.x", program.threads, lambda thread: self._block(number, thread, tiles, across, many)
            )

        return seq(*host, build.threads("blockIdx.x", outer * across * tiles, block))

    def _index(self, extent: Any) -> Any:
        return self.build.const(extent) if isinstance(extent, int) else tvmlib.tirx.Cast(INDEX, extent)

    def _cover(self, size: Any) -> tuple[Any, Any]:
        """(Num₁, Num₂) of so many rows (`BlockProgram.at`)."""
        program, tirx, const = self.program, tvmlib.tirx, self.build.const
        large = program.large.rows
        if program.small is None:
            return ceil_div(size, large), const(0)
        small, divisor = program.small.rows, program.divisor
        few = tirx.floormod(tirx.floordiv(size, divisor) * program.inverse, large // divisor)
        left = size - few * small
        exact = tirx.And(tirx.floormod(size, divisor) == 0, left >= 0)
        whole = tirx.floordiv(size, large)
        return (
            tirx.Select(exact, tirx.floordiv(left, large), whole),
            tirx.Select(exact, few, ceil_div(size - whole * large, small)),
        )

    def _block(self, number: Any, thread: Any, tiles: Any, across: Any, many: Any) -> Stmt:
        """What one thread of one block does."""
        operator, program, build, tirx = self.operator, self.program, self.build, tvmlib.tirx
        statements: list[Stmt] = [tirx.AllocBuffer(b) for b in (self.sums, *self.shared.values())]

        def named(name: str, value: Any) -> Any:
            return build.cell(name, value, statements)

        rest = named("rest", tirx.floordiv(number, tiles))
        tile = named("tile", number - rest * tiles)
        quotient = named("quotient", tirx.floordiv(rest, across))
        column = named("panel", rest - quotient * across) * program.columns
        at: dict[Any, Any] = {}
        for axis in reversed(operator.others):
            extent = self._index(axis.extent)
            at[axis.variable] = self._place(named(str(axis.variable.name), tirx.floormod(quotient, extent)))
            quotient = named("quotient", tirx.floordiv(quotient, extent))
        large = program.large.rows
        first = _Block(at, named("row", tile * large), column, thread)
        if program.small is None:
            return seq(*statements, self._tile(program.large, first))
        second = _Block(at, named("row", many * large + (tile - many) * program.small.rows), column, thread)
        both = (
            build.agreed(tile < many, self._tile(program.large, first)),
            build.agreed(tile >= many, self._tile(program.small, second)),
        )
        return seq(*statements, *both)

    def _tile(self, tile: BlockTile, block: _Block) -> Stmt:
        """One uKernel: sums in registers, the whole reduction, the epilogue."""
        build, tirx = self.build, tvmlib.tirx
        zero = tirx.const(0, self.operator.dtype)
        begin = build.written_out("sum", tile.sums, lambda i: tirx.BufferStore(self.sums, zero, [i]))
        steps = ceil_div(self._index(self.steps), tile.depth)
        return seq(begin, self._reduction(tile, block, steps), self._write(tile, block))

    def _reduction(self, tile: BlockTile, block: _Block, steps: Any) -> Stmt:
        """Sum up, the next `stages` − 1 steps being copied meanwhile."""
        build, tirx, ahead = self.build, tvmlib.tirx, tile.stages - 1
        zero = build.const(0)
        if not ahead:
            return build.loop(
                "step", steps, lambda k: seq(self._copies(tile, block, k, zero), self._compute(tile, block, zero))
            )

        def begun(k: Any) -> Stmt:
            copies = self._copies(tile, block, k, tirx.floormod(k, tile.stages))
            return tirx.AttrStmt(zero, "async_commit_queue_scope", zero, tirx.IfThenElse(k < steps, copies, None))

        def step(k: Any) -> Stmt:
            compute = self._compute(tile, block, tirx.floormod(k, tile.stages))
            return _waited(ahead - 1, seq(begun(k + ahead), compute))

        first = [begun(build.const(k)) for k in range(ahead)]
        return seq(*first, build.loop("step", steps, step, mark=Asynchronous()))

    def _copies(self, tile: BlockTile, block: _Block, k: Any, stage: Any) -> Stmt:
        """Copy a step of both operands into shared memory."""
        return seq(*(self._copy(operand, tile, block, k, stage) for operand in (self.left, self.right)))

    def _copy(self, operand: Operand, tile: BlockTile, block: _Block, k: Any, stage: Any) -> Stmt:
        """Copy a step of an operand: all threads together, neighbours in memory by neighbouring threads."""
        build, tirx, side = self.build, tvmlib.tirx, _side(tile, operand)
        # Every tile must begin at a whole vector, also behind tiles of another height.
        sides = [_side(own, operand) for own in self.program.tiles]
        lanes = operand.lanes if all(own % operand.lanes == 0 for own in sides) else 1
        count = side * tile.depth // lanes
        rounds = -(-count // tile.threads)
        base = stage * tile.words(side)

        def element(number: Any, lane: Any) -> Stmt:
            if operand.along:
                step, place = tirx.floordiv(number, side // lanes), tirx.floormod(number, side // lanes) * lanes
            else:
                place, step = tirx.floordiv(number, tile.depth), tirx.floormod(number, tile.depth)
            where = self._place(base + step * (side + BANK_SHIFT) + place) + lane
            value = self._element(operand, tile, self._clamped(operand, block, place, lanes) + lane, k, step, block)
            return tirx.BufferStore(self.shared[operand.name], value, [where])

        def one(number: Any) -> Stmt:
            return self.memory.side_by_side(lanes, lambda lane: element(number, lane))

        def thread(turn: Any) -> Stmt:
            def own(own_thread: Any) -> Stmt:
                number = turn * tile.threads + own_thread
                if count % tile.threads == 0:
                    return one(number)
                return tirx.IfThenElse(number < count, one(number), None)

            return build.threads("threadIdx.x", tile.threads, own)

        copy = build.written_out("turn", rounds, thread)
        if tile.stages == 1 or not operand.asynchronous:
            return copy
        return tirx.AttrStmt(build.const(0), "async_scope", build.const(1), copy)

    def _clamped(self, operand: Operand, block: _Block, place: Any, lanes: int) -> Any:
        """The row or column of a place in a block's tile; the last ones where they end before it."""
        index = (block.row if operand.name == "rows" else block.column) + place
        if self._ends_inside(operand):
            index = tvmlib.tirx.min(index, self._index(operand.main.extent) - lanes)
        return self._place(index)

    def _ends_inside(self, operand: Operand) -> bool:
        """Whether a tile may have rows or columns that do not exist."""
        extent = operand.main.extent
        return not isinstance(extent, int) or any(extent % _side(tile, operand) for tile in self.program.tiles)

    def _element(self, operand: Operand, tile: BlockTile, main: Any, step: Any, inner: Any, block: _Block) -> Any:
        """An element of an operand, zero beyond the reduction.  main: its row or column.  step, inner: of the
        reduction, and in that."""
        tirx = tvmlib.tirx
        at = {**block.at, operand.main.variable: main}
        k = step * tile.depth + inner
        rest = k
        for axis in reversed(self.operator.reduced[1:]):
            extent = self._index(axis.extent)
            at[axis.variable] = self._place(tirx.floormod(rest, extent))
            rest = tirx.floordiv(rest, extent)
        at[self.operator.reduced[0].variable] = self._place(rest)
        value = tvmlib.substituted(operand.value, at)
        if isinstance(self.steps, int) and self.steps % tile.depth == 0:
            return value
        return tirx.if_then_else(k < self._index(self.steps), value, tirx.const(0, operand.dtype))

    def _compute(self, tile: BlockTile, block: _Block, stage: Any) -> Stmt:
        """Sum up a step from shared memory."""
        build, tirx = self.build, tvmlib.tirx

        def load(operand: Operand, step: Any, own: Any) -> Any:
            side = _side(tile, operand)
            where = stage * tile.words(side) + step * (side + BANK_SHIFT) + self._of_tile(operand, tile, block, own)
            return self.shared[operand.name][where]

        def add(step: Any, i: Any, j: Any) -> Stmt:
            number = i * tile.own_columns + j
            product = self._product(load(self.left, step, i), load(self.right, step, j))
            return tirx.BufferStore(self.sums, self.sums[number] + product, [number])

        return build.written_out(
            "k",
            tile.depth,
            lambda k: build.loop(
                "i",
                tile.own_rows,
                lambda i: build.loop("j", tile.own_columns, lambda j: add(k, i, j), "UNROLLED"),
                "UNROLLED",
            ),
        )

    def _product(self, left: Any, right: Any) -> Any:
        """The product of two elements, in the type of the sums."""

        def factor(node: Any) -> Any:
            for operand, read in ((self.left, left), (self.right, right)):
                if tvmlib.structural_equal(node, operand.value):
                    return read
            return tvmlib.tirx.Cast(str(node.ty.dtype), factor(node.value))

        product, casts = self.operator.product, []
        while type(product).__name__ == "Cast":
            casts.append(str(product.ty.dtype))
            product = product.value
        found = factor(product.a) * factor(product.b)
        for dtype in reversed(casts):
            found = tvmlib.tirx.Cast(dtype, found)
        return found

    def _of_tile(self, operand: Operand, tile: BlockTile, block: _Block, own: Any) -> Any:
        """The row or column, in its tile, of one that a thread has: groups of neighbours, which are as far apart as all
        threads' groups together."""
        tirx, across = tvmlib.tirx, tile.columns // tile.own_columns
        if operand.name == "rows":
            count, thread, threads = tile.own_rows, tirx.floordiv(block.thread, across), tile.rows // tile.own_rows
        else:
            count, thread, threads = tile.own_columns, tirx.floormod(block.thread, across), across
        lanes = math.gcd(count, LANES)
        return tirx.floordiv(own, lanes) * (threads * lanes) + thread * lanes + tirx.floormod(own, lanes)

    def _place(self, value: Any) -> Any:
        """An index of the kernel's as one of memory."""
        return value if self.memory.index == INDEX else tvmlib.tirx.Cast(self.memory.index, value)

    def _write(self, tile: BlockTile, block: _Block) -> Stmt:
        """The epilogue of the outputs that exist, in vectors where the output has them side by side."""
        operator, build, tirx = self.operator, self.build, tvmlib.tirx
        memory, rows, along = self.memory, operator.rows, operator.along
        beside = operator.places[-1].same_as(along.variable) and isinstance(along.extent, int)
        wide = math.gcd(along.extent, _last(operator.written), tile.own_columns, LANES) if beside else 1
        lanes = widest(wide, tvmlib.bits(str(operator.written.dtype)))

        def element(i: Any, j: Any, lane: Any) -> Stmt:
            column = self._place(self._column(tile, block, j)) + lane
            place = {**block.at, rows.variable: self._place(self._row(tile, block, i)), along.variable: column}
            return operator.stored(self.sums[self._place(i * tile.own_columns + j) + lane], place)

        def own(i: Any, vector: Any) -> Stmt:
            j = vector * lanes
            one = memory.side_by_side(lanes, lambda lane: element(i, j, lane))
            tests = []
            if self._ends_inside(self.left):
                tests.append(self._row(tile, block, i) < self._index(rows.extent))
            if self._ends_inside(self.right):
                tests.append(self._column(tile, block, j) < self._index(along.extent))
            return one if not tests else tirx.IfThenElse(tirx.all(*tests), one, None)

        return build.written_out(
            "i",
            tile.own_rows,
            lambda i: build.loop("vector", tile.own_columns // lanes, lambda vector: own(i, vector), "UNROLLED"),
        )

    def _row(self, tile: BlockTile, block: _Block, own: Any) -> Any:
        return block.row + self._of_tile(self.left, tile, block, own)

    def _column(self, tile: BlockTile, block: _Block, own: Any) -> Any:
        return block.column + self._of_tile(self.right, tile, block, own)


def _side(tile: BlockTile, operand: Operand) -> int:
    return tile.rows if operand.name == "rows" else tile.columns


def _last(buffer: Buffer) -> int:
    """A buffer's last size, of which vectors must be a part; 1 where a call decides it."""
    size = buffer.shape[-1]
    return int(size) if isinstance(size, tvmlib.tirx.IntImm) else 1


def _waited(in_flight: int, body: Stmt) -> Stmt:
    """After all but so many copies that were begun have ended, of all threads."""
    tirx = tvmlib.tirx
    zero = tirx.const(0, INDEX)
    counted = tirx.AttrStmt(zero, "async_wait_inflight_count", tirx.const(in_flight, INDEX), body)
    return tirx.AttrStmt(zero, "async_wait_queue_scope", zero, counted)
