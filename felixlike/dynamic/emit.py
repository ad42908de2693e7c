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

from felixlike import tvmlib
from felixlike.codegen.marks import Transpose
from felixlike.dynamic.operator import Axis, Operator
from felixlike.hardware.vectors import IN_FLIGHT
from felixlike.measure.packing import Packing
from felixlike.tvmlib.typing import Buffer, Func, Stmt, TirExpr, Var

_SQUARE = 8
"""Columns that are transposed together where an operand's vectors lie across it."""

_TASKS_A_CORE = 4
"""Shares of the work for each core, at least, where there are tiles enough: cores that are disturbed then do fewer."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The register tiles that code is made for.  tiles: (rows, vectors) of each, ascending, each once; all with the same
    vectors where a constant is packed, since that is done once for all sizes.  lanes: of a vector."""

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


class _Emitter:
    """One kernel in the making."""

    def __init__(self, operator: Operator, pool: Pool, cores: int) -> None:
        self.operator, self.pool, self.cores = operator, pool, cores
        self.index = str(operator.rows.variable.ty.dtype)
        operand = operator.vectors
        self.held = [axis for axis in operator.reduced if axis.uses(operand)]
        self.apart = [axis for axis in operator.others if axis.uses(operand)]
        self.packed: Any = None
        self.panel: Any = None
        extent = operator.along.extent
        widths = {vectors * pool.lanes for _, vectors in pool.tiles}
        self.ragged = not isinstance(extent, int) or any(extent % width for width in widths)
        self.scratch = tvmlib.tirx.decl_buffer((pool.rows * pool.columns,), operator.dtype, "kept")
        if operator.constant is not None:
            panels = ceil_div(extent, pool.columns)
            sizes = [a.extent for a in self.apart] + [panels] + [a.extent for a in self.held] + [pool.columns]
            self.packed = tvmlib.tirx.decl_buffer(sizes, operand.source.dtype, "packed")
        elif self.ragged or not operand.indices[-1].same_as(operator.along.variable):
            self.panel = tvmlib.tirx.decl_buffer(
                [*(a.extent for a in self.held), pool.columns], operand.source.dtype, "panel"
            )

    def const(self, value: int) -> TirExpr:
        """A number of the type of indices."""
        return tvmlib.tirx.const(value, self.index)

    def variable(self, name: str) -> Var:
        """Of the type of indices."""
        return tvmlib.tirx.Var(name, self.index)

    def cell(self, name: str, value: Any, statements: list[Stmt]) -> Any:
        """A value that TVM's simplifier takes as it is: inlined, what it is made of would be looked at in every index,
        for minutes.  To LLVM it is a register all the same.  statements: gets those that make it."""
        buffer = tvmlib.tirx.decl_buffer((1,), self.index, name)
        value = self.const(value) if isinstance(value, int) else value
        statements += [tvmlib.tirx.AllocBuffer(buffer), tvmlib.tirx.BufferStore(buffer, value, [self.const(0)])]
        return buffer[self.const(0)]

    def loop(self, name: str, extent: Any, body: Callable[[Any], Stmt], kind: str = "SERIAL", **notes: Any) -> Stmt:
        """A loop from zero on."""
        variable = self.variable(name)
        extent = self.const(extent) if isinstance(extent, int) else extent
        kinds = tvmlib.tirx.ForKind
        return tvmlib.tirx.For(variable, self.const(0), extent, kinds[kind], body(variable), annotations=notes or None)

    def kernel(self, choose: Chooser, more: Sequence[Buffer]) -> tuple[Func, tuple[Packing, ...]]:
        """The whole function."""
        tirx = tvmlib.tirx
        operator = self.operator
        top, found = choose(operator.rows.extent)
        cover = Cover(*(self.cell(name, getattr(found, name), top) for name in Cover.__slots__))
        width = self.cell("width", cover.vectors * self.pool.lanes, top)
        panels = self.cell("panels", tirx.floordiv(width - 1 + operator.along.extent, width), top)
        tiles = self.cell("tiles", cover.many + cover.few, top)
        outer = _product([panels, *(axis.extent for axis in operator.others)])
        wanted = ceil_div(self.const(_TASKS_A_CORE * self.cores), outer)
        chunks = self.cell("chunks", tirx.max(self.const(1), tirx.min(tiles, wanted)), top)

        def share(number: Any) -> Stmt:
            statements: list[Stmt] = []

            def named(name: str, value: Any) -> Any:
                return self.cell(name, value, statements)

            rest = named("rest", tirx.floordiv(number, chunks))
            chunk = named("chunk", number - rest * chunks)
            quotient = named("quotient", tirx.floordiv(rest, panels))
            panel = named("panel", rest - quotient * panels)
            at: dict[Any, Any] = {}
            for axis in reversed(operator.others):
                if axis.extent == 1:
                    at[axis.variable] = self.const(0)
                    continue
                at[axis.variable] = named(str(axis.variable.name), tirx.floormod(quotient, axis.extent))
                quotient = named("quotient", tirx.floordiv(quotient, axis.extent))
            first = named("first", tirx.floordiv(chunk * tiles, chunks))
            stop = named("stop", tirx.floordiv((chunk + 1) * tiles, chunks))
            column = named("column", panel * width)
            statements += self.fill_panel(at, column, width)
            if self.ragged:
                statements.append(tirx.AllocBuffer(self.scratch))
            statements.append(
                self.loop("tile", stop - first, lambda t: self.any_tile(first + t, cover, at, panel, column))
            )
            return tirx.stmt_seq(*statements)

        body = tirx.stmt_seq(*top, self.loop("share", outer * chunks, share, "PARALLEL"))
        params = list(operator.func.params)
        packings: tuple[Packing, ...] = ()
        if operator.constant is not None:
            packings = (self.packing(params[operator.constant]),)
            params[operator.constant] = self.packed
        return _function([*params, *more], body, operator.func.attrs), packings

    def any_tile(self, number: Any, cover: Cover, at: dict[Any, Any], panel: Any, column: Any) -> Stmt:
        """The tile of a number: the code of its height."""
        tirx = tvmlib.tirx
        large = number < cover.many
        after = cover.many * cover.large + (number - cover.many) * cover.small
        statements: list[Stmt] = []
        height = self.cell("height", tirx.if_then_else(large, cover.large, cover.small), statements)
        row = self.cell("row", tirx.if_then_else(large, number * cover.large, after), statements)
        chain: Any = None
        alone = len({vectors for _, vectors in self.pool.tiles}) == 1
        for rows, vectors in self.pool.tiles:
            own = height == rows if alone else tirx.And(height == rows, cover.vectors == vectors)
            chain = tirx.IfThenElse(own, self.tile(rows, vectors, row, at, panel, column), chain)
        statements.append(chain)
        if self.ragged:
            width = cover.vectors * self.pool.lanes
            part = self.write_part(height, row, at, column, cover.vectors)
            statements.append(tirx.IfThenElse(self.operator.along.extent < column + width, part, None))
        return tirx.stmt_seq(*statements)

    def tile(self, height: int, vectors: int, row: Any, at: dict[Any, Any], panel: Any, column: Any) -> Stmt:
        """One uKernel: a tile of sums in registers, the whole reduction, the epilogue."""
        tirx, operator = tvmlib.tirx, self.operator
        width = vectors * self.pool.lanes
        inner = operator.reduced[-1]
        steps = self._apart(height * vectors, inner)
        zero = tirx.const(0, operator.dtype)
        sums = [
            [tirx.decl_buffer((width,), operator.dtype, f"sums_{r}_{s}") for s in range(steps)]
            for r in range(height)
        ]
        statements: list[Stmt] = []
        for own in sums:
            for buffer in own:
                statements.append(tirx.AllocBuffer(buffer))
                statements.append(self.vectors(vectors, lambda lane, b=buffer: tirx.BufferStore(b, zero, [lane])))

        def step(places: dict[Any, Any], number: int) -> list[Stmt]:
            added: list[Stmt] = []
            for r, own in enumerate(sums):

                def add(lane: Any, r: int = r, buffer: Buffer = own[number]) -> Stmt:
                    place = {**at, **places, operator.rows.variable: row + r, operator.along.variable: column + lane}
                    product = self.product(place, panel, lane)
                    return tirx.BufferStore(buffer, buffer[lane] + product, [lane])

                added.append(self.vectors(vectors, add))
            return added

        def around(axes: Sequence[Axis], places: dict[Any, Any]) -> Stmt:
            first, *others = axes
            name = str(first.variable.name)
            if others:
                return self.loop(name, first.extent, lambda k: around(others, {**places, first.variable: k}))

            def body(k: Any) -> Stmt:
                each = [step({**places, first.variable: k * steps + s if steps > 1 else k}, s) for s in range(steps)]
                return tirx.stmt_seq(*(one for group in each for one in group))

            return self.loop(name, first.extent // steps if steps > 1 else first.extent, body)

        statements.append(around(operator.reduced, {}))
        for own in sums:
            for other in own[1:]:
                statements.append(
                    self.vectors(
                        vectors, lambda lane, a=own[0], b=other: tirx.BufferStore(a, a[lane] + b[lane], [lane])
                    )
                )
        whole = tirx.stmt_seq(*(self.write(own[0], row + r, at, column, vectors) for r, own in enumerate(sums)))
        if not self.ragged:
            return tirx.stmt_seq(*statements, whole)
        kept = tirx.stmt_seq(
            *(
                self.vectors(
                    vectors,
                    lambda lane, r=r, a=own[0]: tirx.BufferStore(self.scratch, a[lane], [r * self.pool.columns + lane]),
                )
                for r, own in enumerate(sums)
            )
        )
        exists = column + width <= operator.along.extent
        return tirx.stmt_seq(*statements, tirx.IfThenElse(exists, whole, kept))

    def _apart(self, sums: int, inner: Axis) -> int:
        """Into how many sums an element is split, so that no product waits for another."""
        if not isinstance(inner.extent, int):
            return 1
        return next((s for s in (4, 2) if sums * s <= IN_FLIGHT and inner.extent % s == 0), 1)

    def product(self, place: dict[Any, Any], panel: Any, lane: Any) -> TirExpr:
        """The product at a place, its operand in vectors read from where it was copied."""
        operand = self.operator.vectors
        read: Any = None
        if self.packed is not None:
            read = self.packed[(*(place[a.variable] for a in self.apart), panel, *self._held(place), lane)]
        elif self.panel is not None:
            read = self.panel[(*self._held(place), lane)]

        def load(node: Any) -> Any:
            return read if read is not None and node.source.same_as(operand.source) and self._same(node) else node

        product = tvmlib.structural_map(self.operator.product, (tvmlib.ir.TensorLoad, load))
        return tvmlib.substituted(product, place)

    def _same(self, node: Any) -> bool:
        return bool(tvmlib.structural_equal(node, self.operator.vectors))

    def _held(self, place: dict[Any, Any]) -> list[Any]:
        return [place[axis.variable] for axis in self.held]

    def vectors(self, count: int, store: Callable[[Any], Stmt]) -> Stmt:
        """Some vectors of a row of a tile, one after the other.  store: a column → what is done there."""
        lanes = self.pool.lanes
        inner = lambda v: self.loop("lane", lanes, lambda lane: store(v * lanes + lane), "VECTORIZED")  # noqa: E731
        return self.loop("vector", count, inner, "UNROLLED")

    def store(self, value: Any, row: Any, at: dict[Any, Any], column: Any) -> Stmt:
        """The epilogue of one element.  value: its sum."""
        operator = self.operator
        place = {**at, operator.rows.variable: row, operator.along.variable: column}

        def load(node: Any) -> Any:
            return value if node.source.same_as(operator.sums) else node

        what = tvmlib.structural_map(operator.epilogue, (tvmlib.ir.TensorLoad, load))
        places = [tvmlib.substituted(index, place) for index in operator.places]
        return tvmlib.tirx.BufferStore(operator.written, tvmlib.substituted(what, place), places)

    @property
    def contiguous(self) -> bool:
        """Whether what is written has its vectors where the tile has them."""
        return bool(self.operator.places[-1].same_as(self.operator.along.variable))

    def write(self, sums: Buffer, row: Any, at: dict[Any, Any], column: Any, vectors: int) -> Stmt:
        """The epilogue of a row of a tile whose columns all exist."""
        kind, lanes = "VECTORIZED" if self.contiguous else "UNROLLED", self.pool.lanes

        def vector(v: Any) -> Stmt:
            return self.loop(
                "lane", lanes, lambda lane: self.store(sums[v * lanes + lane], row, at, column + v * lanes + lane), kind
            )

        return self.loop("vector", vectors, vector, "UNROLLED")

    def write_part(self, height: Any, row: Any, at: dict[Any, Any], column: Any, vectors: Any) -> Stmt:
        """The epilogue of a tile some of whose columns do not exist, from where its sums were kept."""
        tirx, lanes, extent = tvmlib.tirx, self.pool.lanes, self.operator.along.extent
        kind = "VECTORIZED" if self.contiguous else "SERIAL"

        def vector(r: Any, v: Any) -> Stmt:
            first = v * lanes

            def element(lane: Any) -> Stmt:
                kept = self.scratch[r * self.pool.columns + first + lane]
                return self.store(kept, row + r, at, column + first + lane)

            some = tirx.max(self.const(0), tirx.min(self.const(lanes), extent - column - first))
            return tirx.IfThenElse(
                some == lanes, self.loop("lane", lanes, element, kind), self.loop("lane", some, element)
            )

        return self.loop("row", height, lambda r: self.loop("vector", vectors, lambda v: vector(r, v)))

    def fill_panel(self, at: dict[Any, Any], column: Any, width: Any) -> list[Stmt]:
        """What copies the operand's columns into the panel; nothing where it is read where it lies."""
        if self.panel is None:
            return []
        tirx, operator, pool = tvmlib.tirx, self.operator, self.pool
        operand, along, panel = operator.vectors, operator.along, self.panel

        def copy(places: dict[Any, Any], offset: Any) -> Stmt:
            place = {**at, **places, along.variable: column + offset}
            value = tvmlib.substituted(operand, place)
            return tirx.BufferStore(panel, value, [*self._held(place), offset])

        def nest(axes: Sequence[Axis], body: Callable[[dict[Any, Any]], Stmt], places: dict[Any, Any]) -> Stmt:
            if not axes:
                return body(places)
            first, *others = axes
            name = str(first.variable.name)
            return self.loop(name, first.extent, lambda k: nest(others, body, {**places, first.variable: k}))

        statements: list[Stmt] = [tirx.AllocBuffer(panel)]
        some = self.cell("some", tirx.min(width, along.extent - column), statements)
        if operand.indices[-1].same_as(along.variable):
            lanes, rest = pool.lanes, tirx.floordiv(some, pool.lanes) * pool.lanes

            def row(places: dict[Any, Any]) -> Stmt:
                def vector(v: Any) -> Stmt:
                    return self.loop("lane", lanes, lambda lane: copy(places, v * lanes + lane), "VECTORIZED")

                last = self.loop("column", some - rest, lambda c: copy(places, rest + c))
                return tirx.stmt_seq(self.loop("vector", tirx.floordiv(some, lanes), vector), last)

            return [*statements, nest(self.held, row, {})]
        squares = self.cell("squares", tirx.floordiv(some, _SQUARE), statements)
        *outer, inner = self.held
        mark = {Transpose.key: pool.lanes}
        turns = (
            isinstance(inner.extent, int)
            and inner.extent % pool.lanes == 0
            and operand.indices[-1].same_as(inner.variable)
        )

        def square(number: Any) -> Stmt:
            def rows(places: dict[Any, Any]) -> Stmt:
                def body(k: Any) -> Stmt:
                    return self.loop(
                        "column", _SQUARE, lambda c: copy({**places, inner.variable: k}, number * _SQUARE + c)
                    )

                return self.loop("k", inner.extent, body, **(mark if turns else {}))

            return nest(outer, rows, {})

        first = squares * _SQUARE
        statements.append(self.loop("square", squares, square))
        statements.append(
            self.loop("column", some - first, lambda c: nest(self.held, lambda p: copy(p, first + c), {}))
        )
        return statements

    def packing(self, given: Buffer) -> Packing:
        """How the constant becomes panels of columns."""
        tirx, operator = tvmlib.tirx, self.operator
        axes = [*self.apart, operator.along, *self.held]
        extents = [int(extent) for extent in self.packed.shape]

        def nest(number: int, places: tuple[Any, ...]) -> Stmt:
            if number < len(extents):
                return self.loop(f"i{number}", extents[number], lambda i: nest(number + 1, (*places, i)))
            held = places[: len(self.apart)]
            column = places[len(self.apart)] * self.pool.columns + places[-1]
            values = [*held, column, *places[len(self.apart) + 1 : -1]]
            place = {axis.variable: value for axis, value in zip(axes, values, strict=True)}
            value = tvmlib.substituted(operator.vectors, place)
            value = tvmlib.structural_map(value, (tvmlib.ir.TensorLoad, lambda node: given[tuple(node.indices)]))
            zero = tirx.const(0, str(given.dtype))
            exists = column < operator.along.extent
            return tirx.BufferStore(self.packed, tirx.if_then_else(exists, value, zero), list(places))

        return Packing(
            operator.constant or 0,
            tuple(extents),
            str(given.dtype),
            _function([given, self.packed], nest(0, ()), None),
        )


def ceil_div(value: Any, by: Any) -> Any:
    """⌈value / by⌉ of numbers or expressions."""
    if isinstance(value, int) and isinstance(by, int):
        return -(-value // by)
    return tvmlib.tirx.floordiv(value + (by - 1), by)


def _product(extents: Sequence[Any]) -> Any:
    return math.prod(extents[1:], start=extents[0])


def _function(params: list[Any], body: Stmt, attrs: Any) -> Func:
    func = tvmlib.PrimFunc(params, body, attrs=attrs)
    func = func.with_attr("tirx.noalias", True).with_attr("tirx.is_scheduled", True)
    return tvmlib.s_tir.renew_defs(func)
