"""Lay out the operand in vectors as panels of columns: constants once before the first call, other operands in every
call.

    W[j, k]  →  packed[⌊j / columns⌋, k, j mod columns]          B[b, j, k]  →  panel[k, j] of one panel's columns

Input: an `Operator`, the columns of a tile. Output: `Panel`, which provides the load of a product and the statements
that fill or pack the panel. An operand that already lies in vectors is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt
from felixlike.codegen.annotations import Transpose
from felixlike.codegen.build import Builder, ceil_div, function, seq
from felixlike.dynamic.operator import Axis, Operator
from felixlike.measure.packing import Packing

_SQUARE = 8
"""Columns that are transposed together if vectors lie across the operand. Chosen by hand."""

Places = dict[Any, Any]
"""Values of an operator's axes, by variable."""


class Panel:
    """The panels of one operand.

    Attributes:
        held: Reduction axes of the operand.
        apart: Axes of the operand that are neither reduced nor in vectors.
        along: Whether the operand is contiguous along the vectors' axis.
        packed: The buffer of a packed constant, else None.
        copied: The buffer that a panel is copied to in every call, else None.
    """

    def __init__(self, operator: Operator, build: Builder, columns: int, *, ragged: bool) -> None:
        """Create the panels. ragged: Whether the last panel may have fewer columns."""
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
        """Return the product at a place. number: Index of the panel. column: Relative to the panel."""
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
        """Return statements that copy a panel's columns; none if nothing is copied.

        at: Values of the other axes. column: First column of the panel. width: Upper limit on its columns.
        """
        if self.copied is None:
            return []
        statements: list[Stmt] = [_tvm.tirx.AllocBuffer(self.copied)]
        count = _tvm.tirx.min(width, self.operator.along.extent - column)
        count = self.build.cell("some", count, statements)
        copies = self._rows(at, column, count) if self.along else self._turned(at, column, count, statements)
        return [*statements, *copies]

    def _copy(self, at: Places, places: Places, column: Any, offset: Any) -> Stmt:
        """Copy one element into the panel."""
        place = {**at, **places, self.operator.along.variable: column + offset}
        value = _tvm.substituted(self.operator.vectors, place)
        return _tvm.tirx.BufferStore(self.copied, value, [*(place[a.variable] for a in self.held), offset])

    def _nest(self, axes: Sequence[Axis], body: Callable[[Places], Stmt], places: Places) -> Stmt:
        """Return a loop nest over axes."""
        if not axes:
            return body(places)
        first, *others = axes
        name = str(first.variable.name)
        return self.build.loop(name, first.extent, lambda k: self._nest(others, body, {**places, first.variable: k}))

    def _rows(self, at: Places, column: Any, count: Any) -> list[Stmt]:
        """Copy contiguous rows: whole vectors, then single elements."""
        full_vectors = _tvm.tirx.floordiv(count, self.build.lanes)
        rest = full_vectors * self.build.lanes

        def row(places: Places) -> Stmt:
            return seq(
                self.build.vectors(full_vectors, lambda c: self._copy(at, places, column, c), "SERIAL"),
                self.build.loop("column", count - rest, lambda c: self._copy(at, places, column, rest + c)),
            )

        return [self._nest(self.held, row, {})]

    def _turned(self, at: Places, column: Any, count: Any, statements: list[Stmt]) -> list[Stmt]:
        """Copy an operand that lies across: squares transposed in registers, then single columns."""
        *outer, inner = self.held
        build, lanes = self.build, self.build.lanes
        squares = build.cell("squares", _tvm.tirx.floordiv(count, _SQUARE), statements)
        across = self.operator.vectors.indices[-1].same_as(inner.variable)
        turns = isinstance(inner.extent, int) and inner.extent % lanes == 0 and across

        def square(number: Any) -> Stmt:
            def columns(places: Places, k: Any) -> Stmt:
                fixed = {**places, inner.variable: k}
                return build.loop("column", _SQUARE, lambda c: self._copy(at, fixed, column, number * _SQUARE + c))

            def rows(places: Places) -> Stmt:
                mark = Transpose(lanes) if turns else None
                return build.loop("k", inner.extent, lambda k: columns(places, k), mark=mark)

            return self._nest(outer, rows, {})

        first = squares * _SQUARE

        def single(offset: Any) -> Stmt:
            return self._nest(self.held, lambda places: self._copy(at, places, column, first + offset), {})

        return [build.loop("square", squares, square), build.loop("column", count - first, single)]

    def packing(self, parameter: int, given: Buffer) -> Packing:
        """Return the packing of a constant, a parameter of the operator's function; columns beyond the end are zero."""
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
