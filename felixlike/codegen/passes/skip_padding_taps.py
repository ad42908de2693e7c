"""Taps that fall into the padding are left out.

    for tap in 3:                         for tap in 3:
        for c in 512:                         if 1 <= row + tap and row + tap < 8:
            tile += P[row + tap, …] · W   →       for c in 512: tile += P[row + tap, …] · W

In: an IRModule of scheduled PrimFuncs in which a schedule marked loops over taps with `Skip`. Out: the same without
blocks, with a test in each marked loop: what it reads is known to be zero where the copy that pads tests the same. On
small images that is a good part of the work: 10 % of a 3×3 window's rows on 7 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Stmt
from felixlike.codegen.annotations import Skip
from felixlike.codegen.padding import padded
from felixlike.codegen.passes.loop_tools import Change, conjuncts, unmarked, with_marked_loops


def skip_padding(module: Module) -> Module:
    """The IRModule with a test in marked loops: functions without any are left alone."""
    return with_marked_loops(module, Skip, _tested)


def _tested(func: Func) -> Change:
    copies = [store for store in _tvm.found(func.body, _tvm.tirx.BufferStore) if padded(store.value)]

    def tested(loop: Loop) -> Stmt:
        tests = [test for copy in copies for test in _tests(loop, copy)]
        body = _tvm.tirx.IfThenElse(_tvm.tirx.all(*tests), loop.body, None) if tests else loop.body
        return unmarked(loop, body)

    return tested


def _tests(loop: Loop, copy: Any) -> Iterator[Any]:
    """What must hold for the elements that one step of a loop reads of a padded copy, where it is the same for all."""
    loads = [load for load in _tvm.found(loop.body, _tvm.ir.TensorLoad) if load.source.same_as(copy.buffer)]
    inner = [other.loop_var for other in _tvm.found(loop.body, _tvm.tirx.For)]
    for load in loads[:1]:
        places = dict(zip(copy.indices, load.indices, strict=True))
        for test in conjuncts(copy.value.args[0]):
            here = _tvm.substituted(test, places)
            if _tvm.uses(here, loop.loop_var) and not any(_tvm.uses(here, variable) for variable in inner):
                yield here
