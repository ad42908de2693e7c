"""Generate code that serves every size: each uKernel once, in one function with symbolic sizes.

    for T × 2304:                          parallel for panels of columns:
        Y[T, 2304] = X · Wᵀ           →        [copy the panel]
                                               for tile in Num₁ + Num₂:
                                                   if height is 7: rows 0…6 of the panel's columns in registers
                                                   if height is 8: …

Input: an `Operator`, a `Pool` of tiles, and a function that returns the cover of the rows. Output: a PrimFunc of plain
loops, and the packing of a constant operand. Tiles have no bounds tests: rows are covered exactly (FTuner §V-A), and
columns beyond the end are computed (DietCode's local padding) but not written. The last columns get narrower tiles if
the pool has them. While the first tiles of a packed panel are computed, the next panel is prefetched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Stmt
from felixlike.codegen.build import Builder, ceil_div, function, prefetched, seq
from felixlike.dynamic.operator import Axis, Operator
from felixlike.dynamic.panel import Panel, Places
from felixlike.dynamic.rounded_rows import RoundedRows
from felixlike.hardware import Device
from felixlike.hardware.vectors import IN_FLIGHT
from felixlike.measure.packing import Packing
from felixlike.spaces.cpu.bfloat16_pairs import MARK, PAIR

_TASKS_A_CORE = 4
"""Parallel tasks per core, if there are enough tiles, so that a disturbed core can do fewer. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The register tiles that are compiled.

    Attributes:
        tiles: (rows, vectors), ascending and unique. With a packed constant all have the same number of vectors.
        lanes: Elements of a vector.
        pairs: Whether products are computed in pairs of bfloat16 numbers.
    """

    tiles: tuple[tuple[int, int], ...]
    lanes: int
    pairs: bool = False

    @property
    def columns(self) -> int:
        """Columns of the widest tile."""
        return self.lanes * max(vectors for _, vectors in self.tiles)

    @property
    def rows(self) -> int:
        """Rows of the highest tile."""
        return max(rows for rows, _ in self.tiles)


@dataclass(frozen=True, slots=True)
class Cover:
    """A cover of the rows, as expressions: `many` tiles of `large` rows, then `few` of `small`, `vectors` wide."""

    large: Any
    many: Any
    small: Any
    few: Any
    vectors: Any


Chooser = Callable[[Any], tuple[list[Stmt], Cover]]
"""Maps the number of rows to statements and to a cover in the variables that they bind."""


def emit(
    operator: Operator, pool: Pool, choose: Chooser, *, device: Device, more: Sequence[Buffer] = ()
) -> tuple[Func, tuple[Packing, ...]]:
    """Return the kernel and its packings, none or one. more: Extra parameters that `choose` reads."""
    return _Emitter(operator, pool, device).kernel(choose, more)


@dataclass(frozen=True, slots=True)
class _Share:
    """A share of the output.

    Attributes:
        at: Values of the axes other than rows and columns, by variable.
        panel: Index of the panel.
        column: First column of the panel.
        vectors: Width of its tiles in vectors.
        ahead: For each vector of a tile, the columns from what is read to what is prefetched. None prefetches nothing.
    """

    at: Places
    panel: Any
    column: Any
    vectors: Any
    ahead: tuple[Any, ...] = ()


def narrow_widths(tiles: Sequence[tuple[int, int]]) -> list[int]:
    """Return the widths in vectors, ascending, whose tiles have every height of the wider tiles."""
    widths = sorted({vectors for _, vectors in tiles})
    heights = {width: {rows for rows, vectors in tiles if vectors == width} for width in widths}
    return [w for w in widths if any(o > w for o in widths) and all(heights[o] <= heights[w] for o in widths if o > w)]


def computed_columns(columns: int, vectors: int, pool: Pool) -> int:
    """Return how many columns a program of a width in vectors computes to cover some: those beyond are padding."""
    width = vectors * pool.lanes
    rest = columns % width
    narrow = (fewer * pool.lanes for fewer in narrow_widths(pool.tiles) if rest <= fewer * pool.lanes)
    return columns - rest + (min(width, next(narrow, width)) if rest else 0)


class _Emitter:
    """Generates one kernel."""

    def __init__(self, operator: Operator, pool: Pool, device: Device) -> None:
        self.operator, self.pool, self.device = operator, pool, device
        axes = (*operator.spatial, *operator.reduced)
        self.build = Builder(max((str(axis.variable.ty.dtype) for axis in axes), key=_tvm.bits), pool.lanes)
        extent = operator.along.extent
        widths = {vectors * pool.lanes for _, vectors in pool.tiles}
        self.ragged = not isinstance(extent, int) or any(extent % width for width in widths)
        self.kept = _tvm.tirx.decl_buffer((pool.rows * pool.columns,), operator.dtype, "kept")
        self.panel = Panel(operator, self.build, pool.columns, ragged=self.ragged, pairs=pool.pairs)
        self.rows = RoundedRows(operator, self.build) if pool.pairs else None
        # All tiles share these buffers, since each one costs TVM compile time. LLVM still keeps them in registers.
        self.sums = {
            (row, step): _tvm.tirx.decl_buffer((pool.columns,), operator.dtype, f"sums_{row}_{step}")
            for rows, vectors in pool.tiles
            for row in range(rows)
            for step in range(self.apart(rows * vectors))
        }

    def kernel(self, choose: Chooser, more: Sequence[Buffer]) -> tuple[Func, tuple[Packing, ...]]:
        """Return the whole function and its packings."""
        operator, build, tirx = self.operator, self.build, _tvm.tirx
        top, chosen = choose(operator.rows.extent)
        cover = Cover(*(build.cell(name, getattr(chosen, name), top) for name in Cover.__slots__))
        width = build.cell("width", cover.vectors * self.pool.lanes, top)
        panels = build.cell("panels", tirx.floordiv(width - 1 + operator.along.extent, width), top)
        tiles = build.cell("tiles", cover.many + cover.few, top)
        outer = math.prod((axis.extent for axis in operator.others), start=panels)
        # An axis may have size 0, as that of T - 1 at T = 1.
        wanted_chunks = ceil_div(build.const(_TASKS_A_CORE * self.device.cores), tirx.max(build.const(1), outer))
        chunks = build.cell("chunks", tirx.max(build.const(1), tirx.min(tiles, wanted_chunks)), top)

        def share(number: Any) -> Stmt:
            statements: list[Stmt] = []

            def named(name: str, value: Any) -> Any:
                return build.cell(name, value, statements)

            rest = named("rest", tirx.floordiv(number, chunks))
            chunk = named("chunk", number - rest * chunks)
            quotient = named("quotient", tirx.floordiv(rest, panels))
            panel = named("panel", rest - quotient * panels)
            at: Places = {}
            for axis in reversed(operator.others):
                at[axis.variable] = named(str(axis.variable.name), tirx.floormod(quotient, axis.extent))
                quotient = named("quotient", tirx.floordiv(quotient, axis.extent))
            first = named("first", tirx.floordiv(chunk * tiles, chunks))
            stop = named("stop", tirx.floordiv((chunk + 1) * tiles, chunks))
            column = named("column", panel * width)
            current = _Share(at, panel, column, named("vectors", self.needed(cover.vectors, column)))
            statements += self.panel.fill(at, current.column, width)
            statements += map(tirx.AllocBuffer, [*self.sums.values(), self.kept])
            count = named("count", stop - first)

            def tile(t: Any) -> Stmt:
                inner: list[Stmt] = []
                ahead = self.ahead(t, count, inner)
                return seq(*inner, self.any_tile(first + t, cover, replace(current, ahead=ahead)))

            statements.append(build.loop("tile", count, tile))
            return seq(*statements)

        rounded = self.rows.fill(self.device.cores, _TASKS_A_CORE) if self.rows is not None else []
        body = seq(*top, *rounded, build.loop("share", outer * chunks, share, "PARALLEL"))
        params = list(operator.func.params)
        packings: tuple[Packing, ...] = ()
        if operator.constant is not None:
            packings = (self.panel.packing(operator.constant, params[operator.constant]),)
            params[operator.constant] = self.panel.packed
        return function([*params, *more], body, operator.func.attrs), packings

    def needed(self, vectors: Any, column: Any) -> Any:
        """Return the width of a panel's tiles in vectors: narrower ones for the last columns if the pool has them."""
        if not self.ragged:
            return vectors
        remaining = self.operator.along.extent - column
        for width in reversed(narrow_widths(self.pool.tiles)):
            is_enough = _tvm.tirx.And(remaining <= width * self.pool.lanes, vectors > width)
            vectors = _tvm.tirx.if_then_else(is_enough, self.build.const(width), vectors)
        return vectors

    def ahead(self, tile: Any, count: Any, statements: list[Stmt]) -> tuple[Any, ...]:
        """Return for each vector of a tile how many columns lie between what it reads and what it prefetches.

        The first tiles of a share prefetch the next panel: each tile one vector of a step if there are enough tiles.
        Other prefetches have a distance of 0: they meet the L1 cache and cost less than a branch. Nothing is prefetched
        if the constant fits the L2 cache, or if two panels do not, so that one would evict the other.

        Args:
            tile: Number of the tile in its share.
            count: Number of the share's tiles.
            statements: Statements that compute the result are appended.
        """
        panel, near = self.panel, self.device.l2_bytes
        if panel.packed is None or panel.panels * panel.panel_bytes <= near or 2 * panel.panel_bytes > near:
            return ()
        build, tirx = self.build, _tvm.tirx
        vectors = self.pool.columns // self.pool.lanes
        passes = build.cell("passes", tirx.min(count, build.const(vectors)), statements)

        def distance(v: int) -> Any:
            here = tirx.floormod(build.const(v), passes) == tile
            value = tirx.if_then_else(here, build.const(panel.stride), build.const(0))
            return build.cell(f"ahead_{v}", value, statements)

        return tuple(map(distance, range(vectors)))

    def any_tile(self, number: Any, cover: Cover, share: _Share) -> Stmt:
        """Return the code of a tile by its index, with one branch per uKernel."""
        tirx = _tvm.tirx
        large = number < cover.many
        after = cover.many * cover.large + (number - cover.many) * cover.small
        statements: list[Stmt] = []
        height = self.build.cell("height", tirx.if_then_else(large, cover.large, cover.small), statements)
        row = self.build.cell("row", tirx.if_then_else(large, number * cover.large, after), statements)
        single_width = len({vectors for _, vectors in self.pool.tiles}) == 1
        for rows, vectors in self.pool.tiles:
            matches = height == rows if single_width else tirx.And(height == rows, share.vectors == vectors)
            # Not nested: the time of TVM's simplifier grows with the depth of nested ifs.
            statements.append(tirx.IfThenElse(matches, self.tile(rows, vectors, row, share), None))
        width = share.vectors * self.pool.lanes
        part = self.write_part(height, row, share, share.vectors)
        statements.append(tirx.IfThenElse(self.operator.along.extent < share.column + width, part, None))
        return seq(*statements)

    def tile(self, height: int, vectors: int, row: Any, share: _Share) -> Stmt:
        """Return one uKernel: a tile of sums in registers, the whole reduction, the epilogue.

        The epilogue is below a branch even where all columns exist. Without it, LLVM merges the ends of all heights'
        epilogues, and keeps some sums on the stack during the reduction: 112×1024×4096 takes 2 to 3.5 times as long on
        Ice Lake, by the tile.
        """
        tirx, build = _tvm.tirx, self.build
        sums = [[self.sums[r, s] for s in range(self.apart(height * vectors))] for r in range(height)]
        zero = tirx.const(0, self.operator.dtype)

        def begin(buffer: Buffer) -> Stmt:
            return build.vectors(vectors, lambda c: tirx.BufferStore(buffer, zero, [c]))

        def joined(buffer: Buffer, other: Buffer) -> Stmt:
            return build.vectors(vectors, lambda c: tirx.BufferStore(buffer, buffer[c] + other[c], [c]))

        def kept(r: int) -> Stmt:
            first = r * self.pool.columns
            return build.vectors(vectors, lambda c: tirx.BufferStore(self.kept, sums[r][0][c], [first + c]))

        statements = [begin(buffer) for row_sums in sums for buffer in row_sums]
        statements.append(self.reduction(list(self.operator.reduced), {}, sums, vectors, row, share))
        statements += [joined(row_sums[0], other) for row_sums in sums for other in row_sums[1:]]
        epilogue = seq(*(self.write(row_sums[0], row + r, share, vectors) for r, row_sums in enumerate(sums)))
        exists = share.column + vectors * self.pool.lanes <= self.operator.along.extent
        return seq(*statements, tirx.IfThenElse(exists, epilogue, seq(*map(kept, range(height)))))

    def reduction(
        self, axes: list[Axis], places: Places, sums: list[list[Buffer]], vectors: int, row: Any, share: _Share
    ) -> Stmt:
        """Return the reduction loops over these axes."""
        first, *others = axes
        name, steps = str(first.variable.name), len(sums[0])
        if others:
            return self.build.loop(
                name,
                first.extent,
                lambda k: self.reduction(others, {**places, first.variable: k}, sums, vectors, row, share),
            )

        def add(r: int, step: int, k: Any) -> Stmt:
            buffer = sums[r][step]
            fixed = {**share.at, **places, self.operator.rows.variable: row + r}

            def store(column: Any) -> Stmt:
                place = {**fixed, self.operator.along.variable: share.column + column}
                if self.rows is not None:
                    return self.build.loop("both", PAIR, lambda both: pair(place, column, both), mark=MARK)
                product = self.panel.product({**place, first.variable: k}, share.panel, column)
                return _tvm.tirx.BufferStore(buffer, buffer[column] + product, [column])

            def pair(place: Places, column: Any, both: Any) -> Stmt:
                assert self.rows is not None
                left = self.rows.element(place, (k, both))
                right = self.panel.element(place, share.panel, column, (k, both))
                product = left.astype(self.operator.dtype) * right.astype(self.operator.dtype)
                return _tvm.tirx.BufferStore(buffer, buffer[column] + product, [column])

            return self.build.vectors(vectors, store)

        def body(k: Any) -> Stmt:
            numbers = [k * steps + s if steps > 1 else k for s in range(steps)]
            here = {**share.at, **places}
            return seq(
                *(fetch for number in numbers for fetch in self.fetches({**here, first.variable: number}, share)),
                *(add(r, s, number) for s, number in enumerate(numbers) for r in range(len(sums))),
            )

        count = self.steps(first)
        return self.build.loop(name, count // steps if steps > 1 else count, body)

    def fetches(self, place: Places, share: _Share) -> list[Stmt]:
        """Return the prefetches of a step. place: Values of the reduction axes, and of those outside the tile."""
        step = None if self.rows is None else (place[self.operator.reduced[-1].variable], self.build.const(0))
        elements = (
            self.panel.element(place, share.panel, v * self.pool.lanes + ahead, step)
            for v, ahead in enumerate(share.ahead)
        )
        return [prefetched(element) for element in elements]

    def steps(self, axis: Axis) -> Any:
        """Return the steps of the last reduction axis, which are those of pairs if products are computed in pairs."""
        return ceil_div(axis.extent, PAIR) if self.rows is not None else axis.extent

    def apart(self, sums: int) -> int:
        """Return into how many partial sums an element is split, so that no multiply-add waits for the previous one."""
        extent = self.steps(self.operator.reduced[-1])
        if not isinstance(extent, int):
            return 1
        return next((s for s in (4, 2) if sums * s <= IN_FLIGHT and extent % s == 0), 1)

    def store(self, value: Any, row: Any, share: _Share, column: Any) -> Stmt:
        """Return the epilogue of one element. value: its sum. column: relative to the panel."""
        operator = self.operator
        place = {**share.at, operator.rows.variable: row, operator.along.variable: share.column + column}
        return operator.stored(value, place)

    @property
    def contiguous(self) -> bool:
        """Whether output vectors lie along the same axis as the vectors of the tile."""
        return bool(self.operator.places[-1].same_as(self.operator.along.variable))

    def write(self, sums: Buffer, row: Any, share: _Share, vectors: int) -> Stmt:
        """Return the epilogue of a row of a tile whose columns all exist."""
        if self.contiguous:
            return self.build.vectors(vectors, lambda c: self.store(sums[c], row, share, c))
        columns = vectors * self.pool.lanes
        return self.build.loop("column", columns, lambda c: self.store(sums[c], row, share, c), "UNROLLED")

    def write_part(self, height: Any, row: Any, share: _Share, vectors: Any) -> Stmt:
        """Return the epilogue of a tile with columns beyond the end, from the buffer that keeps its sums."""
        tirx, lanes, build = _tvm.tirx, self.pool.lanes, self.build
        kind = "VECTORIZED" if self.contiguous else "SERIAL"

        def vector(r: Any, v: Any) -> Stmt:
            first = v * lanes

            def element(lane: Any) -> Stmt:
                kept = self.kept[r * self.pool.columns + first + lane]
                return self.store(kept, row + r, share, first + lane)

            remaining = self.operator.along.extent - share.column - first
            count = tirx.max(build.const(0), tirx.min(build.const(lanes), remaining))
            full_vector, part = build.loop("lane", lanes, element, kind), build.loop("lane", count, element)
            return tirx.IfThenElse(count == lanes, full_vector, part)

        return build.loop("row", height, lambda r: build.loop("vector", vectors, lambda v: vector(r, v)))
