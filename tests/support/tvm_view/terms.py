"""Convert indices and statements to expressions of the loops around them.

Input: indices as formulas, or a statement as TVM writes it, and a nest. Output: TVM expressions of the nest's loops.
TVM's simplifier decides how remainders and quotients of a fused loop are written.
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
    """Converts to expressions of any nest of `loops`."""

    def __init__(self, loops: Loops) -> None:
        self._value, self._dtype, self._analyzer = loops.value, loops.dtype, loops.analyzer
        self._words = loops.words
        self._variables = {loop.variable for _, path in loops.program.stores() for loop in path}

    def meaning(self, store: Store, nest: Nest) -> dict[Any, Any]:
        """Return the values of TVM's variables at the point."""
        return {variable: self._value_of(variable, ours, nest) for variable, ours in self._words[store.block].meaning}

    def placed(self, store: Store, nest: Nest) -> dict[Any, Any]:
        """Return a block's iterators with their values, simplified as TVM does when it splits or fuses loops.

        If threads share iterations unevenly, the simplification also uses the guard."""
        meaning, words = self.meaning(store, nest), self._words[store.block]
        ranges = {loop.variable: _tvm.ir.Range(0, loop.extent) for loop in nest.loops}
        guard = functools.reduce(_tvm.tirx.all, nest.guards, _tvm.tirx.const(1, "bool"))
        values = [_tvm.substituted(_tvm.substituted(value, meaning), nest.dropped) for _, value in words.places]
        guard = _tvm.substituted(guard, nest.dropped)
        simplified = _tvm.sym.iter_map_simplify(values, ranges, guard)
        return dict(zip((iterator for iterator, _ in words.places), simplified, strict=True))

    def ends(self, store: Store, places: Mapping[Any, Any]) -> list[Any]:
        """Return the guards that are needed to keep a moved block within the buffer it writes.

        Args:
            store: the store.
            places: its iterators with their values."""
        guards: list[Any] = []
        for index, extent in zip(self._words[store.block].indices, store.target.buffer.shape, strict=True):
            ends = [int(arg.value) for arg in extent.args if arg.is_const] if extent.op is Op.MIN else []
            place = _tvm.substituted(index, places)
            guards += [place < end for end in ends if self._analyzer.const_int_bound(place).max_value >= end]
        return guards

    def written(self, index: Index, nest: Nest) -> Any:
        """Return an index from its formula, simplified."""
        return self._analyzer.simplify(self.sum(index, nest))

    def sum(self, index: Index, nest: Nest) -> Any:
        """Return an index from its formula."""
        total: Any = _tvm.tirx.const(0, self._dtype)
        for variable, stride in index.strides:
            if variable in nest.standing:
                total = total + nest.standing[variable] * self._value(stride)
        for floor in index.floors:
            part = _tvm.tirx.floormod if isinstance(floor, Remainder) else _tvm.tirx.floordiv
            total = total + part(self.sum(floor.inner, nest), floor.divisor) * floor.factor
        return total + self._value(index.offset)

    def _value_of(self, variable: Any, ours: Expr, nest: Nest) -> Any:
        if ours in self._variables:
            return nest.standing.get(ours, _tvm.tirx.const(0, self._dtype))
        return _tvm.tirx.const(self._value(ours), str(variable.ty.dtype))
