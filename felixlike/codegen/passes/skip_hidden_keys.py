"""Skip keys of attention that a mask hides from all queries of a tile.

    for j in 1024:                                       for j in min(1024, 32·tile + 32):
        for vector i in 32:                                  for vector i in 32:
            M[i] = max(M[i], X[j, i])                →           M[i] = max(M[i], X[j, i])

Input: an IRModule of scheduled PrimFuncs with loops annotated with `Keys`, and a block that stores
X[j, i] = Select(j <= 32·tile + i, …, -inf). Output: the same module without blocks, whose annotated loops have only the
iterations with an element that the mask does not hide. An annotated loop that is not over keys runs only if there is
such an element. Elements of other buffers that are computed from X[j, i], or that X[j, i] is computed from, are treated
alike. Either all annotated loops of a function are shortened, or none is: what one skips, others must not read.

Pairs of keys, or matrices of pairs, are multiplied by one instruction, which must not read what was not computed. So if
elements are copied to pairs, Y[j // 2, i, j % 2] = X[j, i], other loops have one more key on either side than those
that read pairs, or all but one of those of a matrix.

The conditions are read from the blocks. Loops are shortened afterwards, or TVM could not tell the sizes of buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Stmt, TirExpr, Var
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import Keys, Pairs
from felixlike.codegen.masking import comparisons
from felixlike.codegen.passes.loop_tools import like, step_along, without_mark


def skip_hidden_keys(module: Module) -> Module:
    """Return the IRModule with annotated loops shortened. Other functions are not changed."""
    return _tvm.map_functions(module, _skipped)


def _skipped(func: Func) -> Func:
    """Shorten the annotated loops of a function."""
    annotated = _annotated(func)
    if not annotated:
        return func
    conditions = _Conditions(func)
    limits = {loop.loop_var: limit for loop in annotated if (limit := conditions.limit(loop)) is not None}
    plain = plain_loops.without_blocks(func)
    known = len(limits) == len(annotated) and all(loop.loop_var in limits for loop in _annotated(plain))

    def changed(loop: Loop) -> Stmt:
        if not Keys.on(loop):
            return loop
        rest = without_mark(loop, Keys)
        return limits[loop.loop_var].applied(rest) if known else rest

    return _tvm.structural_map(plain, (_tvm.tirx.For, changed))


def _annotated(func: Func) -> list[Any]:
    """Return the annotated loops of a function."""
    return [loop for loop in _tvm.found(func.body, _tvm.tirx.For) if Keys.on(loop)]


@dataclass(frozen=True, slots=True)
class _Limit:
    """The iterations of a loop with an element that is not hidden.

    Attributes:
        first: The first iteration.
        stop: The first iteration after the last one.
        condition: The condition that there are such iterations, if it does not depend on the iteration.
    """

    first: Any
    stop: Any
    condition: Any

    def applied(self, loop: Loop) -> Stmt:
        """Return a loop with only these iterations."""
        extent = _tvm.simplify(self.stop - self.first)
        short = _tvm.tirx.For(loop.loop_var, self.first, extent, loop.kind, loop.body, annotations=loop.annotations)
        return short if self.condition is None else _tvm.tirx.IfThenElse(self.condition, short, None)


@dataclass(frozen=True, slots=True)
class _Tests:
    """The conditions under which an element of a buffer is not hidden.

    Attributes:
        indices: What numbers the elements: variables, and v // 2 and v % 2 for pairs along one.
        excesses: Expressions of the variables, none of which is positive if the element is not hidden.
    """

    indices: tuple[Any, ...]
    excesses: tuple[Any, ...]

    def at(self, indices: Any) -> list[Any]:
        """Return the expressions for an element."""
        places: dict[Any, Any] = {}
        for own, index in zip(self.indices, indices, strict=True):
            variable, factor = _part(own)
            places[variable] = places[variable] + factor * index if variable in places else factor * index
        return [_tvm.substituted(excess, places) for excess in self.excesses]

    def widened(self, place: int, count: int) -> _Tests:
        """Return the tests that hold if those of an element or of `count` neighbours along a dimension hold."""
        steps = [step_along(excess, self.indices[place]) or 0 for excess in self.excesses]
        excesses = (excess - count * abs(step) for excess, step in zip(self.excesses, steps, strict=True))
        return _Tests(self.indices, tuple(excesses))


class _Conditions:
    """Find where the elements that a function's blocks read or write are not hidden.

    Args:
        func: A scheduled PrimFunc.
    """

    def __init__(self, func: Func) -> None:
        self._units = {one.loop_var: one.min for one in _tvm.found(func.body, _tvm.tirx.For) if int(one.extent) == 1}
        self._tests: dict[Any, _Tests] = {}
        blocks = [realize.block for realize in _tvm.found(func.body, _tvm.s_tir.SBlockRealize)]
        blocks = [block for block in blocks if all(map(_tvm.is_spatial, block.iter_vars))]
        elementwise = [block.body for block in blocks if isinstance(block.body, _tvm.tirx.BufferStore)]
        elementwise = [s for s in elementwise if all(_part(index) is not None for index in s.indices)]
        for store in elementwise:
            excesses = tuple(map(_excess, comparisons(store.value)))
            if excesses:
                self._tests[store.buffer] = _Tests(tuple(store.indices), excesses)
                for load in _tvm.found(store.value, _tvm.ir.TensorLoad):
                    if _tvm.structural_equal(load.indices, store.indices):
                        self._tests[load.source] = self._tests[store.buffer]
        for store in elementwise:
            if store.buffer not in self._tests:
                for tests in self._of_elements(store.value):
                    self._tests[store.buffer] = _Tests(tuple(store.indices), tuple(tests))
        paired = [store for store in elementwise if not all(isinstance(i, _tvm.tirx.Var) for i in store.indices)]
        for place in {place for store in paired for place in self._places_of_pairs(store)}:
            others, count = set(self._tests) - {store.buffer for store in paired}, _at_once(func) - 1
            self._tests |= {buffer: self._tests[buffer].widened(place, count) for buffer in others}

    def _places_of_pairs(self, store: Stmt) -> Iterator[int]:
        """Yield the dimension of a tested buffer along which a statement copies pairs."""
        halves = [_part(index)[0] for index in store.indices if not isinstance(index, _tvm.tirx.Var)]
        for load in _tvm.found(store.value, _tvm.ir.TensorLoad):
            if load.source in self._tests:
                yield from (p for p, index in enumerate(load.indices) if any(index.same_as(half) for half in halves))

    def limit(self, loop: Loop) -> _Limit | None:
        """Return the iterations with an element that is not hidden, or None if they are unknown."""
        limits: list[_Limit] = []
        for realize in _tvm.found(loop.body, _tvm.s_tir.SBlockRealize):
            values = {i.var: value for i, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
            tests = next(self._of_elements(realize.block.body), None)
            if tests is None or realize.block.init is not None:
                return None
            tests = [_tvm.substituted(_tvm.substituted(test, values), self._units) for test in tests]
            limit = self._limit(loop, tests)
            if limit is None:
                return None
            limits.append(limit)
        return reduce(_union, limits) if limits else None

    def _of_elements(self, statement: Any) -> Iterator[list[Any]]:
        """Yield the tests of the elements that a statement reads or writes."""
        for load in _tvm.found(statement, _tvm.ir.TensorLoad):
            if load.source in self._tests:
                yield self._tests[load.source].at(load.indices)
        for store in _tvm.found(statement, _tvm.tirx.BufferStore):
            if store.buffer in self._tests:
                yield self._tests[store.buffer].at(store.indices)

    def _limit(self, loop: Loop, tests: list[Any]) -> _Limit | None:
        """Return the iterations for which no test is positive for all iterations of the loops inside."""
        variable: Var = loop.loop_var
        first, stop, condition = like(variable, 0), like(variable, int(loop.extent)), []
        for test in tests:
            excess = _least(test, _tvm.found(loop.body, _tvm.tirx.For))
            step = None if excess is None else step_along(excess, variable)
            if excess is None or step is None:
                return None
            rest = _tvm.substituted(excess, {variable: 0})
            if step > 0:
                stop = _tvm.tirx.min(stop, _tvm.tirx.floordiv(-rest, like(variable, step)) + 1)
            elif step < 0:
                first = _tvm.tirx.max(first, _tvm.tirx.floordiv(rest - step - 1, like(variable, -step)))
            else:
                condition.append(rest <= 0)
        over_keys = any(_tvm.uses(test, variable) for test in tests)
        test = None if over_keys or not condition else _tvm.tirx.all(*condition)
        return _Limit(_tvm.simplify(first), _tvm.simplify(_tvm.tirx.max(first, stop)), test)


def _at_once(func: Func) -> int:
    """Return the keys whose pairs are multiplied in one iteration of a loop over them."""
    return max(
        abs(step_along(value, loop.loop_var) or 0)
        for loop in _annotated(func)
        for realize in _tvm.found(loop.body, _tvm.s_tir.SBlockRealize)
        for i, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if _tvm.is_reduction(i) and any(map(Pairs.on, _tvm.found(loop.body, _tvm.tirx.For)))
    )


def _part(index: TirExpr) -> Any:
    """Return the variable of an index v, v // 2 or v % 2, and the factor of the index in v. Return None for others."""
    if isinstance(index, _tvm.tirx.Var):
        return index, 1
    kind = type(index).__name__
    if kind not in ("FloorDiv", "FloorMod") or not isinstance(index.a, _tvm.tirx.Var):
        return None
    by_two = isinstance(index.b, _tvm.tirx.IntImm) and int(index.b) == 2
    return (index.a, 2 if kind == "FloorDiv" else 1) if by_two else None


def _union(one: _Limit, other: _Limit) -> _Limit:
    """Return the iterations of two limits."""
    tests = [limit.condition for limit in (one, other)]
    return _Limit(
        _tvm.simplify(_tvm.tirx.min(one.first, other.first)),
        _tvm.simplify(_tvm.tirx.max(one.stop, other.stop)),
        None if any(test is None for test in tests) else _tvm.simplify(_tvm.tirx.any(*tests)),
    )


def _excess(test: TirExpr) -> Any:
    """Return the expression that is not positive if a comparison holds."""
    kind = type(test).__name__
    less, more = (test.a, test.b) if kind in ("LT", "LE") else (test.b, test.a)
    return less - more + (1 if kind in ("LT", "GT") else 0)


def _least(expression: TirExpr, loops: list[Any]) -> Any:
    """Return the least value of an expression over all iterations of loops, or None if it is not linear in them."""
    for loop in loops:
        step = step_along(expression, loop.loop_var)
        if step is None:
            return None
        last = int(loop.min) + int(loop.extent) - 1
        expression = _tvm.substituted(expression, {loop.loop_var: int(loop.min) if step >= 0 else last})
    return _tvm.simplify(expression)
