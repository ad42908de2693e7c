"""Code that serves every size: each uKernel once, in one function whose sizes are known when it is called.

    for T × 2304:                          parallel for panels of columns:
        Y[T, 2304] = X · Wᵀ           →        [copy the panel]
                                               for tile in Num₁ + Num₂:
                                                   if height is 7: rows 0…6 of the panel's columns in registers
                                                   if height is 8: …

In: an `Operator`, a `Pool` of tiles, what says which of them cover the rows. Out: a PrimFunc of plain loops, and how a
constant operand is packed for it. No tile has a test: rows are covered exactly (FTuner §V-A), columns that do not exist
are computed (DietCode's local padding) and not written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Stmt
from felixlike.dynamic.build import Builder, ceil_div, function, seq
from felixlike.dynamic.operator import Axis, Operator
from felixlike.dynamic.panel import Panel, Places
from felixlike.hardware.vectors import IN_FLIGHT
from felixlike.measure.packing import Packing

_TASKS_A_CORE = 4
"""Shares of the work for each core, at least, where there are tiles enough: cores that are disturbed then do fewer."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The register tiles that code is made for.  tiles: (rows, vectors) of each, ascending, each once; all with the
    same vectors where a constant is packed, since that is done once for all sizes.  lanes: of a vector."""

    tiles: tuple[tuple[int, int], ...]
    lanes: int

    @property
    def columns(self) -> int:
        """Of the widest tile."""
        return self.lanes * max(vectors for _, vectors in self.tiles)

    @property
    def rows(self) -> int:
        """Of the highest tile."""
        return max(rows for rows, _ in self.tiles)


@dataclass(frozen=True, slots=True)
class Cover:
    """How rows are covered, as expressions: `many` tiles of `large` rows, then `few` of `small`, all of `vectors`."""

    large: Any
    many: Any
    small: Any
    few: Any
    vectors: Any


Chooser = Callable[[Any], tuple[list[Stmt], Cover]]
"""The number of rows → statements, and the cover in the variables that they bind."""


def emit(
    operator: Operator, pool: Pool, choose: Chooser, *, cores: int, more: Sequence[Buffer] = ()
) -> tuple[Func, tuple[Packing, ...]]:
    """The kernel and its packings, none or one.  more: parameters that `choose` reads, after the others."""
    return _Emitter(operator, pool, cores).kernel(choose, more)


@dataclass(frozen=True, slots=True)
class _Share:
    """A share of the output.  at: values of the axes that are neither rows nor in vectors.  panel: its number.  column:
    the first of the panel's."""

    at: Places
    panel: Any
    column: Any


class _Emitter:
    """One kernel in the making."""

    def __init__(self, operator: Operator, pool: Pool, cores: int) -> None:
        self.operator, self.pool, self.cores = operator, pool, cores
        self.build = Builder(str(operator.rows.variable.ty.dtype), pool.lanes)
        extent = operator.along.extent
        widths = {vectors * pool.lanes for _, vectors in pool.tiles}
        self.ragged = not isinstance(extent, int) or any(extent % width for width in widths)
        self.kept = _tvm.tirx.decl_buffer((pool.rows * pool.columns,), operator.dtype, "kept")
        self.panel = Panel(operator, self.build, pool.columns, ragged=self.ragged)
        # All tiles share their buffers, of which each has its own registers all the same: TVM takes time for each.
        self.sums = {
            (row, step): _tvm.tirx.decl_buffer((pool.columns,), operator.dtype, f"sums_{row}_{step}")
            for rows, vectors in pool.tiles
            for row in range(rows)
            for step in range(self.apart(rows * vectors))
        }

    def kernel(self, choose: Chooser, more: Sequence[Buffer]) -> tuple[Func, tuple[Packing, ...]]:
        """The whole function."""
        operator, build, tirx = self.operator, self.build, _tvm.tirx
        top, found = choose(operator.rows.extent)
        cover = Cover(*(build.cell(name, getattr(found, name), top) for name in Cover.__slots__))
        width = build.cell("width", cover.vectors * self.pool.lanes, top)
        panels = build.cell("panels", tirx.floordiv(width - 1 + operator.along.extent, width), top)
        tiles = build.cell("tiles", cover.many + cover.few, top)
        outer = math.prod((axis.extent for axis in operator.others), start=panels)
        wanted = ceil_div(build.const(_TASKS_A_CORE * self.cores), outer)
        chunks = build.cell("chunks", tirx.max(build.const(1), tirx.min(tiles, wanted)), top)

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
            own = _Share(at, panel, named("column", panel * width))
            statements += self.panel.fill(at, own.column, width)
            statements += map(tirx.AllocBuffer, [*self.sums.values(), *([self.kept] if self.ragged else [])])
            statements.append(build.loop("tile", stop - first, lambda t: self.any_tile(first + t, cover, own)))
            return seq(*statements)

        body = seq(*top, build.loop("share", outer * chunks, share, "PARALLEL"))
        params = list(operator.func.params)
        packings: tuple[Packing, ...] = ()
        if operator.constant is not None:
            packings = (self.panel.packing(operator.constant, params[operator.constant]),)
            params[operator.constant] = self.panel.packed
        return function([*params, *more], body, operator.func.attrs), packings

    def any_tile(self, number: Any, cover: Cover, share: _Share) -> Stmt:
        """The tile of a number: the code of its height."""
        tirx = _tvm.tirx
        large = number < cover.many
        after = cover.many * cover.large + (number - cover.many) * cover.small
        statements: list[Stmt] = []
        height = self.build.cell("height", tirx.if_then_else(large, cover.large, cover.small), statements)
        row = self.build.cell("row", tirx.if_then_else(large, number * cover.large, after), statements)
        alone = len({vectors for _, vectors in self.pool.tiles}) == 1
        for rows, vectors in self.pool.tiles:
            own = height == rows if alone else tirx.And(height == rows, cover.vectors == vectors)
            # Side by side: what TVM's simplifier knows of nested ones grows with their depth, and so does its time.
            statements.append(tirx.IfThenElse(own, self.tile(rows, vectors, row, share), None))
        if self.ragged:
            width = cover.vectors * self.pool.lanes
            part = self.write_part(height, row, share, cover.vectors)
            statements.append(tirx.IfThenElse(self.operator.along.extent < share.column + width, part, None))
        return seq(*statements)

    def tile(self, height: int, vectors: int, row: Any, share: _Share) -> Stmt:
        """One uKernel: a tile of sums in registers, the whole reduction, the epilogue."""
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

        statements = [begin(buffer) for own in sums for buffer in own]
        statements.append(self.reduction(list(self.operator.reduced), {}, sums, vectors, row, share))
        statements += [joined(own[0], other) for own in sums for other in own[1:]]
        whole = seq(*(self.write(own[0], row + r, share, vectors) for r, own in enumerate(sums)))
        if self.ragged:
            exists = share.column + vectors * self.pool.lanes <= self.operator.along.extent
            whole = tirx.IfThenElse(exists, whole, seq(*map(kept, range(height))))
        return seq(*statements, whole)

    def reduction(
        self, axes: list[Axis], places: Places, sums: list[list[Buffer]], vectors: int, row: Any, share: _Share
    ) -> Stmt:
        """The loops that sum up, from these axes inwards."""
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
            own = {**share.at, **places, first.variable: k, self.operator.rows.variable: row + r}

            def store(column: Any) -> Stmt:
                place = {**own, self.operator.along.variable: share.column + column}
                product = self.panel.product(place, share.panel, column)
                return _tvm.tirx.BufferStore(buffer, buffer[column] + product, [column])

            return self.build.vectors(vectors, store)

        def body(k: Any) -> Stmt:
            numbers = [k * steps + s if steps > 1 else k for s in range(steps)]
            return seq(*(add(r, s, number) for s, number in enumerate(numbers) for r in range(len(sums))))

        return self.build.loop(name, first.extent // steps if steps > 1 else first.extent, body)

    def apart(self, sums: int) -> int:
        """Into how many sums an element is split, so that no product waits for another."""
        extent = self.operator.reduced[-1].extent
        if not isinstance(extent, int):
            return 1
        return next((s for s in (4, 2) if sums * s <= IN_FLIGHT and extent % s == 0), 1)

    def store(self, value: Any, row: Any, share: _Share, column: Any) -> Stmt:
        """The epilogue of one element.  value: its sum.  column: in its panel."""
        operator = self.operator
        place = {**share.at, operator.rows.variable: row, operator.along.variable: share.column + column}
        return operator.stored(value, place)

    @property
    def contiguous(self) -> bool:
        """Whether what is written has its vectors where the tile has them."""
        return bool(self.operator.places[-1].same_as(self.operator.along.variable))

    def write(self, sums: Buffer, row: Any, share: _Share, vectors: int) -> Stmt:
        """The epilogue of a row of a tile whose columns all exist."""
        if self.contiguous:
            return self.build.vectors(vectors, lambda c: self.store(sums[c], row, share, c))
        columns = vectors * self.pool.lanes
        return self.build.loop("column", columns, lambda c: self.store(sums[c], row, share, c), "UNROLLED")

    def write_part(self, height: Any, row: Any, share: _Share, vectors: Any) -> Stmt:
        """The epilogue of a tile some of whose columns do not exist, from where its sums were kept."""
        tirx, lanes, build = _tvm.tirx, self.pool.lanes, self.build
        kind = "VECTORIZED" if self.contiguous else "SERIAL"

        def vector(r: Any, v: Any) -> Stmt:
            first = v * lanes

            def element(lane: Any) -> Stmt:
                kept = self.kept[r * self.pool.columns + first + lane]
                return self.store(kept, row + r, share, first + lane)

            left = self.operator.along.extent - share.column - first
            some = tirx.max(build.const(0), tirx.min(build.const(lanes), left))
            whole, part = build.loop("lane", lanes, element, kind), build.loop("lane", some, element)
            return tirx.IfThenElse(some == lanes, whole, part)

        return build.loop("row", height, lambda r: build.loop("vector", vectors, lambda v: vector(r, v)))
