"""Lay out the operand in vectors as panels of columns: constants once before the first call, other operands in every
call.

    W[j, k]  →  packed[⌊j / columns⌋, k, j mod columns]          B[b, j, k]  →  panel[k, j] of one panel's columns

Input: an `Operator`, the columns of a tile. Output: `Panel`, which provides the load of a product and the statements
that fill or pack the panel. An operand that already lies in vectors is read in place.

For products in pairs, panels are of bfloat16, and both elements of a pair along the last reduction axis are neighbours:
panel[⌊k / 2⌋, j, k mod 2]. An odd axis is padded with a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt
from felixlike.codegen.annotations import Transpose
from felixlike.codegen.build import Builder, ceil_div, function, seq
from felixlike.dynamic.operator import Axis, Operator, is_half
from felixlike.hardware import BFLOAT16
from felixlike.measure.packing import Packing
from felixlike.spaces.contraction import bare
from felixlike.spaces.cpu.bfloat16_pairs import MARK, PAIR

_SQUARE = 8
"""Columns that are transposed together if vectors lie across the operand. Chosen by hand."""

Places = dict[Any, Any]
"""Values of an operator's axes, by variable."""

Step = tuple[Any, Any]
"""A step of the last reduction axis in pairs: the number of the pair, and 0 or 1 for its element."""


def at_step(step: Step) -> Any:
    """Return the value of the axis at a step in pairs."""
    number, element = step
    return number * PAIR + element


def half(value: Any) -> Any:
    """Return a value in bfloat16."""
    inner = bare(value)
    if type(inner).__name__ == "TensorLoad" and is_half(inner.source):
        return inner
    return _tvm.tirx.Cast(BFLOAT16.name, value.astype("float32"))


def within(axis: Axis, step: Step, value: Any) -> Any:
    """Return a value in bfloat16 at a step in pairs; 0 beyond the end of an odd axis."""
    if isinstance(axis.extent, int) and axis.extent % PAIR == 0:
        return value
    return _tvm.tirx.if_then_else(at_step(step) < axis.extent, value, _tvm.tirx.const(0, BFLOAT16.name))


class Panel:
    """The panels of one operand.

    Attributes:
        held: Reduction axes of the operand.
        apart: Axes of the operand that are neither reduced nor in vectors.
        along: Whether the operand is contiguous along the vectors' axis.
        packed: The buffer of a packed constant, else None.
        copied: The buffer that a panel is copied to in every call, else None.
        turned: The buffer of a square's columns that are copied in pairs after they were transposed, else None.
    """

    def __init__(self, operator: Operator, build: Builder, columns: int, *, ragged: bool, pairs: bool) -> None:
        """Create the panels. ragged: Whether the last panel may have fewer columns. pairs: For products in pairs."""
        self.operator, self.build, self.columns, self.pairs = operator, build, columns, pairs
        operand = operator.vectors
        self.held = [axis for axis in operator.reduced if axis.uses(operand)]
        self.apart = [axis for axis in operator.others if axis.uses(operand)]
        self.along = bool(operand.indices[-1].same_as(operator.along.variable))
        self.packed: Any = None
        self.copied: Any = None
        self.turned: Any = None
        held = [axis.extent for axis in self.held]
        sizes, dtype = [*held, columns], operand.source.dtype
        if pairs:
            sizes, dtype = [*held[:-1], ceil_div(held[-1], PAIR), columns, PAIR], BFLOAT16.name
        if operator.constant is not None:
            sizes = [*(axis.extent for axis in self.apart), ceil_div(operator.along.extent, columns), *sizes]
            self.packed = _tvm.tirx.decl_buffer(sizes, dtype, "packed")
        elif ragged or pairs or not self.along:
            self.copied = _tvm.tirx.decl_buffer(sizes, dtype, "panel")
            if pairs and self._turns() and not is_half(operand.source):
                self.turned = _tvm.tirx.decl_buffer([*held, _SQUARE], operand.source.dtype, "turned")

    @property
    def stride(self) -> int:
        """Columns from a vector of a packed panel to the same vector of the next panel."""
        inner = [int(size) for size in self.packed.shape][len(self.apart) + 1 :]
        return math.prod(inner[:-1] if self.pairs else inner)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a packed panel."""
        return self.stride * (PAIR if self.pairs else 1) * _tvm.bits(self.packed.dtype) // 8

    @property
    def panels(self) -> int:
        """Number of packed panels."""
        return math.prod(int(size) for size in self.packed.shape[: len(self.apart) + 1])

    def element(self, place: Places, number: Any, column: Any, step: Step | None = None) -> Any:
        """Return the element of the operand at a place, None if it is read in place.

        number: Index of the panel. column: Relative to the panel. step: That of the last reduction axis in pairs.
        """
        held = [place[axis.variable] for axis in self.held[: -1 if step else None]]
        inner = [*held, column] if step is None else [*held, step[0], column, step[1]]
        if self.packed is not None:
            return self.packed[(*(place[axis.variable] for axis in self.apart), number, *inner)]
        return None if self.copied is None else self.copied[tuple(inner)]

    def product(self, place: Places, number: Any, column: Any) -> Any:
        """Return the product at a place. number: Index of the panel. column: Relative to the panel."""
        read = self.element(place, number, column)

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
        if self.pairs:
            return self._copy_of_pair(place, offset, lambda at_step: _tvm.substituted(self.operator.vectors, at_step))
        value = _tvm.substituted(self.operator.vectors, place)
        return _tvm.tirx.BufferStore(self.copied, value, [*(place[a.variable] for a in self.held), offset])

    def _copy_of_pair(self, place: Places, column: Any, value: Callable[[Places], Any]) -> Stmt:
        """Copy a pair into the panel. In `place`, the last reduction axis has the number of the pair.

        value: Returns the element at a place.
        """
        *outer, last = self.held
        number = place[last.variable]

        def element(both: Any) -> Stmt:
            step = (number, both)
            copied = within(last, step, half(value({**place, last.variable: at_step(step)})))
            where = [*(place[axis.variable] for axis in outer), number, column, both]
            return _tvm.tirx.BufferStore(self.copied, copied, where)

        return self.build.loop("both", PAIR, element, mark=MARK)

    def _each(self, body: Callable[[Places], Stmt]) -> Stmt:
        """Return a loop nest over the reduction axes, the last one by pairs if products are in pairs."""
        *outer, last = self.held
        steps = ceil_div(last.extent, PAIR) if self.pairs else last.extent
        return self._nest([*outer, Axis(last.variable, steps)], body, {})

    def _turns(self) -> bool:
        """Return whether squares are transposed in registers: the last reduction axis lies in whole vectors."""
        inner = self.held[-1]
        across = bool(self.operator.vectors.indices[-1].same_as(inner.variable))
        return isinstance(inner.extent, int) and inner.extent % self.build.lanes == 0 and across

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

        return [self._each(row)]

    def _turned(self, at: Places, column: Any, count: Any, statements: list[Stmt]) -> list[Stmt]:
        """Copy an operand that lies across: squares transposed in registers, then single columns."""
        build = self.build
        squares = build.cell("squares", _tvm.tirx.floordiv(count, _SQUARE), statements)
        if self.turned is not None:
            statements.append(_tvm.tirx.AllocBuffer(self.turned))
        first = squares * _SQUARE

        def single(offset: Any) -> Stmt:
            return self._each(lambda places: self._copy(at, places, column, first + offset))

        square = build.loop("square", squares, lambda number: self._square(at, column, number * _SQUARE))
        return [square, build.loop("column", count - first, single)]

    def _square(self, at: Places, column: Any, first: Any) -> Stmt:
        """Copy a square's columns. first: Its first column, relative to the panel."""
        *outer, inner = self.held

        def copy(places: Places, c: Any) -> Stmt:
            if self.turned is None:
                return self._copy(at, places, column, first + c)
            place = {**at, **places, self.operator.along.variable: column + first + c}
            value = _tvm.substituted(self.operator.vectors, place)
            return _tvm.tirx.BufferStore(self.turned, value, [*(place[axis.variable] for axis in self.held), c])

        def columns(places: Places) -> Stmt:
            return self.build.loop("column", _SQUARE, lambda c: copy(places, c))

        def rows(places: Places) -> Stmt:
            mark = Transpose(self.build.lanes) if self._turns() else None
            return self.build.loop("k", inner.extent, lambda k: columns({**places, inner.variable: k}), mark=mark)

        if self.pairs and self.turned is None:
            return self._each(columns)
        square = self._nest(outer, rows, {})
        return (
            square if self.turned is None else seq(square, self._each(lambda places: self._turned_pairs(places, first)))
        )

    def _turned_pairs(self, places: Places, first: Any) -> Stmt:
        """Copy a pair of each transposed column of a square into the panel. first: Its first column."""

        def pair(c: Any) -> Stmt:
            def value(place: Places) -> Any:
                return self.turned[(*(place[axis.variable] for axis in self.held), c)]

            return self._copy_of_pair(places, first + c, value)

        return self.build.loop("lane", _SQUARE, pair, "VECTORIZED")

    def packing(self, parameter: int, given: Buffer) -> Packing:
        """Return the packing of a constant, a parameter of the operator's function; columns beyond the end are zero."""
        axes = [*self.apart, self.operator.along, *self.held]
        extents = [int(extent) for extent in self.packed.shape]
        middle = len(self.apart)

        def element(places: list[Any]) -> Stmt:
            *outer, offset = places
            held = outer[middle + 1 :]
            if self.pairs:
                *outer, pair, lane, both = places
                held, offset = [*outer[middle + 1 :], at_step((pair, both))], lane
            column = places[middle] * self.columns + offset
            values = [*places[:middle], column, *held]
            place = {axis.variable: value for axis, value in zip(axes, values, strict=True)}
            value = _tvm.substituted(self.operator.vectors, place)
            value = _tvm.structural_map(value, (_tvm.ir.TensorLoad, lambda node: given[tuple(node.indices)]))
            if self.pairs:
                value = within(self.held[-1], (pair, both), half(value))
            zero = _tvm.tirx.const(0, str(self.packed.dtype))
            exists = column < self.operator.along.extent
            return _tvm.tirx.BufferStore(self.packed, _tvm.tirx.if_then_else(exists, value, zero), places)

        def nest(number: int, places: list[Any]) -> Stmt:
            if number == len(extents):
                return element(places)
            return self.build.loop(f"i{number}", extents[number], lambda i: nest(number + 1, [*places, i]))

        body = function([given, self.packed], nest(0, []), None)
        return Packing(parameter, tuple(extents), str(self.packed.dtype), body)
