"""Copy the factor that is multiplied with vectors in pairs of bfloat16, once in every call.

    X[t, k]  →  rounded[t, k] in bfloat16, with a zero behind an odd number of steps

Input: an `Operator`. Output: `RoundedRows`, which provides an element of a pair and the statements that copy all rows,
in parallel if there are many elements. What is computed before the product, such as an activation, is computed in this
copy. A factor in bfloat16 whose pairs are neighbours is read in place.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Stmt
from felixlike.codegen.build import Builder, ceil_div, seq
from felixlike.dynamic.operator import Operator, is_half
from felixlike.dynamic.panel import Places, Step, at_step, half
from felixlike.hardware import BFLOAT16
from felixlike.spaces.contraction import bare
from felixlike.spaces.cpu.bfloat16_pairs import PAIR

_ELEMENTS_A_TASK = 2**14
"""Elements that a parallel task copies at least. They take about as long as starting it. Chosen by hand."""


class RoundedRows:
    """The rows of one factor.

    Attributes:
        axes: Axes of the factor; the last reduction axis, whose pairs are multiplied, is the last.
        copied: The buffer of the copy, None if the factor is read in place.
    """

    def __init__(self, operator: Operator, build: Builder) -> None:
        self.operator, self.build = operator, build
        factor = operator.broadcast
        *outer, self.last = [axis for axis in (*operator.spatial, *operator.reduced) if axis.uses(factor)]
        self.outer = outer
        self.copied: Any = None
        if not self._in_pairs():
            sizes = [*(axis.extent for axis in outer), ceil_div(self.last.extent, PAIR) * PAIR]
            self.copied = _tvm.tirx.decl_buffer(sizes, BFLOAT16.name, "rounded")

    def _in_pairs(self) -> bool:
        """Return whether the factor has neighbours in bfloat16 as pairs."""
        load = bare(self.operator.broadcast)
        if type(load).__name__ != "TensorLoad" or not is_half(load.source):
            return False
        alone = not any(self.last.uses(index) for index in load.indices[:-1])
        even = isinstance(self.last.extent, int) and self.last.extent % PAIR == 0
        return alone and even and bool(load.indices[-1].same_as(self.last.variable))

    def element(self, place: Places, step: Step) -> Any:
        """Return the element at a place and a step of the last reduction axis."""
        if self.copied is None:
            load = bare(self.operator.broadcast)
            return _tvm.substituted(load, {**place, self.last.variable: at_step(step)})
        return self.copied[(*(place[axis.variable] for axis in self.outer), at_step(step))]

    def fill(self, cores: int, most: int) -> list[Stmt]:
        """Return the statements that copy all rows, none if they are read in place.

        cores: Number of cores. most: Upper limit on parallel tasks of a core.
        """
        if self.copied is None:
            return []
        build, tirx = self.build, _tvm.tirx
        statements: list[Stmt] = [tirx.AllocBuffer(self.copied)]
        count: Any = math.prod((axis.extent for axis in self.outer), start=build.const(1))
        rows = build.cell("rows", count, statements)
        wanted = ceil_div(rows * self.last.extent, _ELEMENTS_A_TASK)
        chunks = build.cell("chunks", tirx.min(rows, tirx.min(wanted, build.const(most * cores))), statements)

        def chunk(number: Any) -> Stmt:
            inner: list[Stmt] = []
            first = build.cell("first", tirx.floordiv(number * rows, chunks), inner)
            stop = build.cell("stop", tirx.floordiv((number + 1) * rows, chunks), inner)
            return seq(*inner, build.loop("row", stop - first, lambda row: self._row(first + row)))

        return [*statements, build.loop("chunk", chunks, chunk, "PARALLEL")]

    def _row(self, number: Any) -> Stmt:
        """Return the copy of a row by its number: whole vectors, then single elements."""
        build, statements, extent = self.build, list[Stmt](), self.last.extent
        quotient = build.cell("quotient", number, statements)
        place: Places = {}
        for axis in reversed(self.outer):
            name = str(axis.variable.name)
            place[axis.variable] = build.cell(name, _tvm.tirx.floormod(quotient, axis.extent), statements)
            quotient = build.cell("quotient", _tvm.tirx.floordiv(quotient, axis.extent), statements)
        where = [place[axis.variable] for axis in self.outer]

        def copy(k: Any) -> Stmt:
            value = half(_tvm.substituted(self.operator.broadcast, {**place, self.last.variable: k}))
            return _tvm.tirx.BufferStore(self.copied, value, [*where, k])

        whole = _whole_vectors(extent, build.lanes)
        statements.append(build.vectors(whole, copy, "SERIAL"))
        statements.append(build.loop("k", extent - whole * build.lanes, lambda k: copy(whole * build.lanes + k)))
        if not isinstance(extent, int) or extent % PAIR:
            zero = _tvm.tirx.BufferStore(
                self.copied, _tvm.tirx.const(0, BFLOAT16.name), [*where, _index(extent, build)]
            )
            statements.append(_tvm.tirx.IfThenElse(_index(extent, build) % PAIR == 1, zero, None))
        return seq(*statements)


def _whole_vectors(extent: Any, lanes: int) -> Any:
    """Return how many whole vectors there are in an extent."""
    return extent // lanes if isinstance(extent, int) else _tvm.tirx.floordiv(extent, lanes)


def _index(extent: Any, build: Builder) -> Any:
    """Return an extent as an expression of the index type."""
    return build.const(extent) if isinstance(extent, int) else extent
