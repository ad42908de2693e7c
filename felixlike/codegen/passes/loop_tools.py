"""Find annotated loops, replace their bodies and variables, count steps and iterations, read what reductions join."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Loop, Module, Stmt, TirExpr, Var
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import LoopAnnotation
from felixlike.errors import CompilationFailed

Change = Callable[[Loop], Stmt]
"""A function from an annotated loop to its replacement."""


def with_marked_loops(
    module: Module, mark: type[LoopAnnotation], change: Callable[[Func], Change], *, flat: bool = False
) -> Module:
    """Lower an IRModule's blocks and replace every annotated loop. Functions without such loops are not changed.

    `change` takes a function as plain loops and returns the replacement function. Inner loops are replaced first. With
    `flat`, buffers are flattened to one dimension first.
    """
    return _tvm.map_functions(module, lambda func: _changed(func, mark, change, flat=flat))


def unmarked(loop: Loop, body: Stmt = None) -> Loop:
    """Return a loop without its annotations, with another body if one is given."""
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body if body is None else body)


def with_body(loop: Loop, body: Stmt) -> Loop:
    """Return a loop with another body, and its annotations."""
    return annotated(unmarked(loop, body), loop.annotations)


def annotated(loop: Loop, annotations: Mapping[str, Any]) -> Loop:
    """Return a loop with these annotations instead of its own."""
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=dict(annotations))


def without_mark(loop: Loop, mark: type[LoopAnnotation]) -> Loop:
    """Return a loop without one of its annotations."""
    return annotated(loop, {name: value for name, value in loop.annotations.items() if name != mark.key})


def with_mark(loop: Loop, mark: LoopAnnotation) -> Loop:
    """Return a loop with an additional annotation."""
    return annotated(loop, {**loop.annotations, mark.key: mark.value})


def unlike(what: str, why: str, where: str) -> CompilationFailed:
    """Return the error for an annotated loop of another form than its pass expects.

    Args:
        what: What the loop is annotated as.
        why: What is different.
        where: The precision or the instructions.
    """
    return CompilationFailed(
        f"a loop is annotated {what}, but {why}",
        where=where,
        remedy='this is a bug in felixlike; report it, and use precision="float32" until it is fixed',
    )


def like(variable: Var, value: int) -> TirExpr:
    """Return a constant of a variable's type."""
    return _tvm.tirx.const(value, str(variable.ty.dtype))


def variable_like(variable: Var) -> Var:
    """Return a new variable with the name and type of another."""
    return _tvm.tirx.Var(variable.name, str(variable.ty.dtype))


def anew(loop: Loop, body: Stmt = None, *, extent: Any = None) -> Loop:
    """Return a copy of a loop with a new variable, and with another body or extent if one is given."""
    variable = variable_like(loop.loop_var)
    body = _tvm.substituted(loop.body if body is None else body, {loop.loop_var: variable})
    extent = loop.extent if extent is None else extent
    return _tvm.tirx.For(variable, loop.min, extent, loop.kind, body, annotations=loop.annotations)


def number_of(loops: Sequence[Loop]) -> TirExpr:
    """Return the number of the current iteration of a loop nest. `loops` are outermost first."""
    number: Any = 0
    for loop in loops:
        number = number * loop.extent + loop.loop_var
    return number


def step_along(place: TirExpr, variable: Var) -> int | None:
    """Return the stride of a place along a variable, or None if it is not constant."""
    step = _tvm.simplify(_tvm.substituted(place, {variable: variable + 1}) - place)
    return int(step) if isinstance(step, _tvm.tirx.IntImm) else None


def reads(value: TirExpr, buffer: Buffer) -> bool:
    """Return whether a value loads from a buffer."""
    return any(load.source.same_as(buffer) for load in _tvm.found(value, _tvm.ir.TensorLoad))


def added(store: Stmt) -> TirExpr | None:
    """Return what a reduction joins to its result in each iteration, or None for other statements.

    store: a statement that stores an operation of two values.
    """
    for accumulator, other in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        same = isinstance(accumulator, _tvm.ir.TensorLoad) and accumulator.source.same_as(store.buffer)
        if same and _tvm.structural_equal(accumulator.indices, store.indices) and not reads(other, store.buffer):
            joined: TirExpr = other
            return joined
    return None


def analyzer_of(func: Func) -> Any:
    """Return an analyzer that knows the ranges of variables, except of those with several different ranges."""
    ranges: dict[Any, list[Any]] = {}
    for loop in _tvm.found(func.body, _tvm.tirx.For):
        ranges.setdefault(loop.loop_var, []).append(_tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    for block in _tvm.found(func.body, _tvm.s_tir.SBlock):
        for iterator in block.iter_vars:
            ranges.setdefault(iterator.var, []).append(iterator.dom)
    analyzer = _tvm.sym.Analyzer()
    for variable, (first, *others) in ranges.items():
        if all(_tvm.structural_equal(first, other) for other in others):
            analyzer.bind(variable, first)
    return analyzer


def _changed(func: Func, mark: type[LoopAnnotation], change: Callable[[Func], Change], *, flat: bool) -> Func:
    """Replace a function's annotated loops."""
    if not any(mark.on(loop) for loop in _tvm.found(func.body, _tvm.tirx.For)):
        return func
    plain = plain_loops.without_blocks(func)
    plain = plain_loops.with_flat_buffers(plain) if flat else plain
    changed = change(plain)
    return _tvm.structural_map(plain, (_tvm.tirx.For, lambda loop: changed(loop) if mark.on(loop) else loop))
