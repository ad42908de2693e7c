"""Skip taps that fall into the padding.

    for tap in 3:                         for tap in 3:
        for c in 512:                         if 1 <= row + tap and row + tap < 8:
            tile += P[row + tap, …] · W   →       for c in 512: tile += P[row + tap, …] · W

Input: an IRModule of scheduled PrimFuncs with loops over taps annotated with `Skip`. Output: the same module without
blocks, with a test in each annotated loop. The condition of the padded copy tells where its elements are zero; if there
is no copy, that of the loads in the loop does. On small images, this saves a considerable part of the work: 10 % of a
3×3 window's rows on 7 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Stmt
from felixlike.codegen.annotations import Skip
from felixlike.codegen.masking import conjuncts
from felixlike.codegen.padding import padded
from felixlike.codegen.passes.loop_tools import Change, added, unmarked, with_marked_loops


def skip_padding(module: Module) -> Module:
    """Return the IRModule with a test in annotated loops. Other functions are not changed."""
    return with_marked_loops(module, Skip, _tested)


def _tested(func: Func) -> Change:
    """Return the replacement of annotated loops of a function."""
    copies = [store for store in _tvm.found(func.body, _tvm.tirx.BufferStore) if padded(store.value)]

    def tested(loop: Loop) -> Stmt:
        tests = [test for copy in copies for test in _tests(loop, copy)] or list(_tests_of_loads(loop))
        body = _tvm.tirx.IfThenElse(_tvm.tirx.all(*tests), loop.body, None) if tests else loop.body
        return unmarked(loop, body)

    return tested


def _tests(loop: Loop, copy: Any) -> Iterator[Any]:
    """Yield the conditions under which the elements of a padded copy that a loop step reads are not zero.

    Only conditions that are the same for all elements of a step are included.
    """
    loads = [load for load in _tvm.found(loop.body, _tvm.ir.TensorLoad) if load.source.same_as(copy.buffer)]
    for load in loads[:1]:
        places = dict(zip(copy.indices, load.indices, strict=True))
        yield from _of_steps(loop, [_tvm.substituted(test, places) for test in conjuncts(copy.value.args[0])])


def _tests_of_loads(loop: Loop) -> Iterator[Any]:
    """Yield the conditions under which a factor of the products that a loop step sums is not zero, as `_tests` does.

    TVM removes them from the factors, which are in a statement with these conditions then.
    """
    stores = _tvm.found(loop.body, _tvm.tirx.BufferStore)
    if len(stores) == 1:
        for guarded in filter(None, map(padded, _factors(stores[0]))):
            yield from _of_steps(loop, conjuncts(guarded[0]))


def _factors(store: Any) -> list[Any]:
    """Return the factors of the product that a statement adds to what it stores."""
    product = added(store) if isinstance(store.value, _tvm.tirx.Add) else None
    return [product.a, product.b] if isinstance(product, _tvm.tirx.Mul) else []


def _of_steps(loop: Loop, tests: Sequence[Any]) -> Iterator[Any]:
    """Yield those of some tests that differ between the steps of a loop, but not within a step."""
    inner = [other.loop_var for other in _tvm.found(loop.body, _tvm.tirx.For)]
    for test in tests:
        if _tvm.uses(test, loop.loop_var) and not any(_tvm.uses(test, variable) for variable in inner):
            yield test
