"""The operand in vectors, laid out in panels of columns: constants once, before the first call; others in every call.

    W[j, k]  →  packed[⌊j / columns⌋, k, j mod columns]          B[b, j, k]  →  panel[k, j] of one panel's columns

In: an `Operator`, the columns of a tile. Out: `Panel`: where a product finds its vector, and what fills or packs it.
Where an operand lies as vectors need it, it is read there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt
from felixlike.codegen.annotations import Transpose
from felixlike.dynamic.build import Builder, ceil_div, function, seq
from felixlike.dynamic.operator import Axis, Operator
from felixlike.measure.packing import Packing

_SQUARE = 8
"""Columns that are transposed together where an operand's vectors lie across it."""

Places = dict[Any, Any]
"""Values of an operator's axes, by variable."""


class Panel:
    """held: the summed axes that the operand has.  apart: its axes that are neither summed nor in vectors.  packed,
    copied: the buffer that it is read from; None where it is another one, or the operand itself."""

    def __init__(self, operator: Operator, build: Builder, columns: int, *, ragged: bool) -> None:
        """ragged: whether the last panel may have fewer columns."""
        self.operator, self.build, self.columns = operator, build, columns
        operand = operator.vectors
        self.held = [axis for axis in operator.reduced if axis.uses(operand)]
        self.apart = [axis for axis in operator.others if axis.uses(operand)]
        self.along = bool(operand.indices[-1].same_as(operator.along.variable))
        self.packed: Any = None
        self.copied: Any = None
        held = [axis.extent for axis in self.held]
        if operator.constant is not None:
            sizes = [*(axis.extent for axis in self.apart), ceil_div(operator.along.extent, columns), *held, columns]
            self.packed = _tvm.tirx.decl_buffer(sizes, operand.source.dtype, "packed")
        elif ragged or not self.along:
            self.copied = _tvm.tirx.decl_buffer([*held, columns], operand.source.dtype, "panel")

    def product(self, place: Places, number: Any, column: Any) -> Any:
        """The product at a place.  number: of the panel.  column: in it."""
        held = [place[axis.variable] for axis in self.held]
        if self.packed is not None:
            read = self.packed[(*(place[axis.variable] for axis in self.apart), number, *held, column)]
        elif self.copied is not None:
            read = self.copied[(*held, column)]
        else:
            read = None

        def load(node: Any) -> Any:
            return read if read is not None and _tvm.structural_equal(node, self.operator.vectors) else node

        product = _tvm.structural_map(self.operator.product, (_tvm.ir.TensorLoad, load))
        return _tvm.substituted(product, place)

    def fill(self, at: Places, column: Any, width: Any) -> list[Stmt]:
        """What copies a panel's columns; nothing where nothing is copied.

        at: values of the other axes.  column: the first of the panel.  width: how many it has, at most."""
        if self.copied is None:
            return []
        statements: list[Stmt] = [_tvm.tirx.AllocBuffer(self.copied)]
        some = _tvm.tirx.min(width, self.operator.along.extent - column)
        some = self.build.cell("some", some, statements)
        copies = self._rows(at, column, some) if self.along else self._turned(at, column, some, statements)
        return [*statements, *copies]

    def _copy(self, at: Places, places: Places, column: Any, offset: Any) -> Stmt:
        place = {**at, **places, self.operator.along.variable: column + offset}
        value = _tvm.substituted(self.operator.vectors, place)
        return _tvm.tirx.BufferStore(self.copied, value, [*(place[a.variable] for a in self.held), offset])

    def _nest(self, axes: Sequence[Axis], body: Callable[[Places], Stmt], places: Places) -> Stmt:
        if not axes:
            return body(places)
        first, *others = axes
        name = str(first.variable.name)
        return self.build.loop(name, first.extent, lambda k: self._nest(others, body, {**places, first.variable: k}))

    def _rows(self, at: Places, column: Any, some: Any) -> list[Stmt]:
        """Copies of rows that lie as they should: whole vectors, then single elements."""
        whole = _tvm.tirx.floordiv(some, self.build.lanes)
        rest = whole * self.build.lanes

        def row(places: Places) -> Stmt:
            return seq(
                self.build.vectors(whole, lambda c: self._copy(at, places, column, c), "SERIAL"),
                self.build.loop("column", some - rest, lambda c: self._copy(at, places, column, rest + c)),
            )

        return [self._nest(self.held, row, {})]

    def _turned(self, at: Places, column: Any, some: Any, statements: list[Stmt]) -> list[Stmt]:
        """Copies of what lies across: squares that are transposed in registers, then single columns."""
        *outer, inner = self.held
        build, lanes = self.build, self.build.lanes
        squares = build.cell("squares", _tvm.tirx.floordiv(some, _SQUARE), statements)
        across = self.operator.vectors.indices[-1].same_as(inner.variable)
        turns = isinstance(inner.extent, int) and inner.extent % lanes == 0 and across

        def square(number: Any) -> Stmt:
            def columns(places: Places, k: Any) -> Stmt:
                own = {**places, inner.variable: k}
                return build.loop("column", _SQUARE, lambda c: self._copy(at, own, column, number * _SQUARE + c))

            def rows(places: Places) -> Stmt:
                mark = Transpose(lanes) if turns else None
                return build.loop("k", inner.extent, lambda k: columns(places, k), mark=mark)

            return self._nest(outer, rows, {})

        first = squares * _SQUARE

        def single(offset: Any) -> Stmt:
            return self._nest(self.held, lambda places: self._copy(at, places, column, first + offset), {})

        return [build.loop("square", squares, square), build.loop("column", some - first, single)]

    def packing(self, parameter: int, given: Buffer) -> Packing:
        """How the constant, a parameter of the operator's function, is packed; columns that do not exist are zero."""
        axes = [*self.apart, self.operator.along, *self.held]
        extents = [int(extent) for extent in self.packed.shape]
        middle = len(self.apart)

        def element(places: list[Any]) -> Stmt:
            column = places[middle] * self.columns + places[-1]
            values = [*places[:middle], column, *places[middle + 1 : -1]]
            place = {axis.variable: value for axis, value in zip(axes, values, strict=True)}
            value = _tvm.substituted(self.operator.vectors, place)
            value = _tvm.structural_map(value, (_tvm.ir.TensorLoad, lambda node: given[tuple(node.indices)]))
            zero = _tvm.tirx.const(0, str(given.dtype))
            exists = column < self.operator.along.extent
            return _tvm.tirx.BufferStore(self.packed, _tvm.tirx.if_then_else(exists, value, zero), places)

        def nest(number: int, places: list[Any]) -> Stmt:
            if number == len(extents):
                return element(places)
            return self.build.loop(f"i{number}", extents[number], lambda i: nest(number + 1, [*places, i]))

        body = function([given, self.packed], nest(0, []), None)
        return Packing(parameter, tuple(extents), str(given.dtype), body)
