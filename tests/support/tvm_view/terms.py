"""What statements say, in terms of the loops around them.

In: indices as formulas, or a statement in TVM's words; a nest. Out: TVM's expressions of the nest's loops. TVM's
simplifier chooses how remainders and quotients of a fused loop are written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from felixlike import _tvm
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.expr.node import Op
from felixlike.symbolic.program import Index, Remainder, Store
from support.tvm_view.loops import Loops, Nest


class Terms:
    """In terms of any nest of `loops`."""

    def __init__(self, loops: Loops) -> None:
        self._value, self._dtype, self._analyzer = loops.value, loops.dtype, loops.analyzer
        self._words = loops.words
        self._variables = {loop.variable for _, path in loops.program.stores() for loop in path}

    def meaning(self, store: Store, nest: Nest) -> dict[Any, Any]:
        """What TVM's variables are at the point."""
        return {variable: self._meant(variable, ours, nest) for variable, ours in self._words[store.block].meaning}

    def placed(self, store: Store, nest: Nest) -> dict[Any, Any]:
        """A block's iterators with their values, as TVM simplifies them whenever it splits or fuses loops. Where
        threads share iterations unevenly, the guard is part of what it knows."""
        meaning, words = self.meaning(store, nest), self._words[store.block]
        ranges = {loop.variable: _tvm.ir.Range(0, loop.extent) for loop in nest.loops}
        guard = functools.reduce(_tvm.tirx.all, nest.guards, _tvm.tirx.const(1, "bool"))
        values = [_tvm.substituted(_tvm.substituted(value, meaning), nest.dropped) for _, value in words.places]
        guard = _tvm.substituted(guard, nest.dropped)
        found = _tvm.sym.iter_map_simplify(values, ranges, guard)
        return dict(zip((iterator for iterator, _ in words.places), found, strict=True))

    def ends(self, store: Store, places: Mapping[Any, Any]) -> list[Any]:
        """The guards that keep a moved block from running past the end of what it writes, where it would.

        places: its iterators with their values."""
        found: list[Any] = []
        for index, extent in zip(self._words[store.block].indices, store.target.buffer.shape, strict=True):
            ends = [int(arg.value) for arg in extent.args if arg.is_const] if extent.op is Op.MIN else []
            place = _tvm.substituted(index, places)
            found += [place < end for end in ends if self._analyzer.const_int_bound(place).max_value >= end]
        return found

    def written(self, index: Index, nest: Nest) -> Any:
        """An index from its formula, simplified."""
        return self._analyzer.simplify(self.sum(index, nest))

    def sum(self, index: Index, nest: Nest) -> Any:
        """An index from its formula."""
        total: Any = _tvm.tirx.const(0, self._dtype)
        for variable, stride in index.strides:
            if variable in nest.standing:
                total = total + nest.standing[variable] * self._value(stride)
        for floor in index.floors:
            part = _tvm.tirx.floormod if isinstance(floor, Remainder) else _tvm.tirx.floordiv
            total = total + part(self.sum(floor.inner, nest), floor.divisor) * floor.factor
        return total + self._value(index.offset)

    def _meant(self, variable: Any, ours: Expr, nest: Nest) -> Any:
        if ours in self._variables:
            return nest.standing.get(ours, _tvm.tirx.const(0, self._dtype))
        return _tvm.tirx.const(self._value(ours), str(variable.ty.dtype))
