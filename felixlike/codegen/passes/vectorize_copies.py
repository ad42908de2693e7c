"""Vectorize the innermost loop of copies that add padding, where it is one vector or a few.

    for y, x: for c in 16:                                for y, x: vector c in 16:
        P[y, x, c] = inside(y, x) ? X[y − 1, x − 1, c] : 0   →   P[y, x, c] = inside(y, x) ? X[y − 1, x − 1, c] : 0

Input: an IRModule of PrimFuncs, whose blocks earlier passes have lowered. Output: the same module with such loops in
vectors. LLVM unrolls short loops before it vectorizes. It then turns the loop over x into gathers and scatters: a
depthwise convolution with stride 2 took 122 instead of 25 µs. Functions that still have blocks are not changed.
"""

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Stmt
from felixlike.codegen.padding import padded
from felixlike.codegen.passes.loop_tools import step_along

_EXTENTS = (8, 16, 32)
"""Iterations of loops that LLVM unrolls, in whole vectors."""


def copies_in_vectors(module: Module) -> Module:
    """Return the IRModule with short innermost loops of padding copies in vectors. Other functions are not changed."""
    return _tvm.map_functions(module, _changed)


def _changed(func: Func) -> Func:
    """Vectorize a function's copies."""
    copies = any(padded(store.value) for store in _tvm.found(func.body, _tvm.tirx.BufferStore))
    if not copies or _tvm.found(func.body, _tvm.s_tir.SBlock):
        return func
    return _tvm.structural_map(func, (_tvm.tirx.For, _vectorized))


def _vectorized(loop: Loop) -> Stmt:
    """Return a loop in vectors if it is the innermost one of a padding copy, else the loop."""
    tirx, variable = _tvm.tirx, loop.loop_var
    short = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) in _EXTENTS
    if not short or tirx.ForKind(loop.kind) != tirx.ForKind.SERIAL or not isinstance(loop.body, tirx.BufferStore):
        return loop
    copied = padded(loop.body.value)
    if copied is None or _tvm.uses(copied[0], variable) or not _is_along(copied[1], variable):
        return loop
    *outer, last = loop.body.indices
    if any(_tvm.uses(index, variable) for index in outer) or step_along(last, variable) != 1:
        return loop
    return tirx.For(variable, loop.min, loop.extent, tirx.ForKind.VECTORIZED, loop.body)


def _is_along(value: Any, variable: Any) -> bool:
    """Return whether a value is an element of a tensor whose last index follows a variable."""
    if not isinstance(value, _tvm.ir.TensorLoad):
        return False
    *outer, last = value.indices
    return step_along(last, variable) == 1 and not any(_tvm.uses(index, variable) for index in outer)
