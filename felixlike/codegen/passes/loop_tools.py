"""What passes do with loops: find marked ones, give them other bodies and variables, count steps and iterations, take
their tests apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Stmt, TirExpr, Var
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import LoopAnnotation

Change = Callable[[Loop], Stmt]
"""A marked loop → what takes its place."""


def with_marked_loops(
    module: Module, mark: type[LoopAnnotation], change: Callable[[Func], Change], *, flat: bool = False
) -> Module:
    """The IRModule without blocks, and with every loop changed that carries such a mark; functions without any are left
    alone.

    change: a function as plain loops → what to do with such a loop in it. Inner loops are changed first.  flat: its
    buffers have one dimension then."""
    return _tvm.map_functions(module, lambda func: _changed(func, mark, change, flat=flat))


def unmarked(loop: Loop, body: Stmt = None) -> Loop:
    """A loop without its annotations; with another body, if one is given."""
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body if body is None else body)


def annotated(loop: Loop, annotations: Mapping[str, Any]) -> Loop:
    """A loop with these annotations instead of its own."""
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=dict(annotations))


def without_mark(loop: Loop, mark: type[LoopAnnotation]) -> Loop:
    """A loop with all of its annotations but one."""
    return annotated(loop, {name: value for name, value in loop.annotations.items() if name != mark.key})


def with_mark(loop: Loop, mark: LoopAnnotation) -> Loop:
    """A loop with one more annotation."""
    return annotated(loop, {**loop.annotations, mark.key: mark.value})


def like(variable: Var, value: int) -> TirExpr:
    """A number of a variable's type."""
    return _tvm.tirx.const(value, str(variable.ty.dtype))


def variable_like(variable: Var) -> Var:
    """Another variable with the name and type of one."""
    return _tvm.tirx.Var(variable.name, str(variable.ty.dtype))


def anew(loop: Loop, body: Stmt = None, *, extent: Any = None) -> Loop:
    """A loop with a variable of its own, and the annotations of another; with another body or extent, if given."""
    variable = variable_like(loop.loop_var)
    body = _tvm.substituted(loop.body if body is None else body, {loop.loop_var: variable})
    extent = loop.extent if extent is None else extent
    return _tvm.tirx.For(variable, loop.min, extent, loop.kind, body, annotations=loop.annotations)


def number_of(loops: Sequence[Loop]) -> TirExpr:
    """Which iteration of all that a nest has is the current one.  loops: outermost first."""
    number: Any = 0
    for loop in loops:
        number = number * loop.extent + loop.loop_var
    return number


def conjuncts(condition: TirExpr) -> list[Any]:
    """What must all be true for a condition to be."""
    if not isinstance(condition, _tvm.tirx.And):
        return [condition]
    return [*conjuncts(condition.a), *conjuncts(condition.b)]


def step_along(place: TirExpr, variable: Var) -> int | None:
    """By how much a step of a variable changes a place; None where that depends on it."""
    step = _tvm.simplify(_tvm.substituted(place, {variable: variable + 1}) - place)
    return int(step) if isinstance(step, _tvm.tirx.IntImm) else None


def _changed(func: Func, mark: type[LoopAnnotation], change: Callable[[Func], Change], *, flat: bool) -> Func:
    if not any(mark.on(loop) for loop in _tvm.found(func.body, _tvm.tirx.For)):
        return func
    plain = plain_loops.without_blocks(func)
    plain = plain_loops.with_flat_buffers(plain) if flat else plain
    changed = change(plain)
    return _tvm.structural_map(plain, (_tvm.tirx.For, lambda loop: changed(loop) if mark.on(loop) else loop))
