"""How rewrites walk a Relax module: a rule looks at one expression at a time, and at what is known around it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

from felixlike import _tvm

Rule = Callable[[Any, "Bindings", "Rewriter"], Any]
"""(a call or an element of a tuple, the bindings around it, the rewriter) → what takes its place, or None."""

BROADCAST, INJECTIVE, OUT_FUSIBLE, OPAQUE = 1, 2, 4, 8
"""TVM's kinds of PrimFuncs: up to which they are fused behind sums; up to which they compute every element from single
ones; what works on single elements may be fused behind; nothing may be fused to it."""


class Bindings:
    """The bindings of a Relax function: what a variable stands for, and who reads it."""

    def __init__(self, function: Any) -> None:
        self._values: dict[int | None, Any] = {}
        self._variables: dict[int | None, Any] = {}
        self._blocks: dict[int | None, int] = {}
        self._readers: dict[int | None, list[Any]] = {}
        for block, variable, value in _bindings(function):
            if variable is not None:
                self._values[_tvm.identity(variable)] = value
                self._variables[_tvm.identity(value)] = variable
            self._blocks[_tvm.identity(value)] = block
            for read in _tvm.relax.analysis.free_vars(value):
                self._readers.setdefault(_tvm.identity(read), []).append(value)

    def value(self, expression: Any) -> Any:
        """What is bound to a variable; the expression itself where it is none, or an input."""
        return self._values.get(_tvm.identity(expression), expression)

    def variable(self, value: Any) -> Any:
        """The variable that a value is bound to."""
        return self._variables[_tvm.identity(value)]

    def block(self, value: Any) -> int:
        """The number of the block that binds a value; -1 for what is within one."""
        return self._blocks.get(_tvm.identity(value), -1)

    def readers(self, variable: Any) -> list[Any]:
        """The bound values that read a variable, and the function's output where that does."""
        return self._readers.get(_tvm.identity(variable), [])

    def once(self, variable: Any) -> bool:
        """Whether a variable is read once."""
        return len(self.readers(variable)) == 1


class Rewriter:
    """What a rule builds with.  new: an expression as the new function has it.  builder: TVM's, of that function."""

    def __init__(self, visitor: Any) -> None:
        self.builder = visitor.builder_
        self.new = visitor.visit_expr


def rewritten(module: Any, rule: Rule) -> Any:
    """The module with a rule applied to every call and every element of a tuple in its Relax functions, and without
    what nothing reads any more."""
    relax = _tvm.relax
    known: list[Bindings] = []

    class Visitor(relax.PyExprMutator):  # type: ignore[misc,name-defined]
        def visit_call_(self, call: Any) -> Any:
            found = rule(call, known[-1], Rewriter(self))
            return super().visit_call_(call) if found is None else found

        def visit_tuple_getitem_(self, element: Any) -> Any:
            found = rule(element, known[-1], Rewriter(self))
            return super().visit_tuple_getitem_(element) if found is None else found

    visitor = relax.expr_functor.mutator(Visitor)(module)
    functions = [(v, f) for v, f in module.functions.items() if isinstance(f, relax.Function)]
    for variable, function in functions:
        known.append(Bindings(function))
        visitor.builder_.update_func(variable, visitor.visit_expr(function))
    return relax.transform.DeadCodeElimination()(visitor.builder_.get())


def settled(module: Any, rule: Rule) -> Any:
    """The module with a rule applied until it changes nothing."""
    while True:
        changed = rewritten(module, rule)
        if _tvm.structural_equal(changed, module):
            return module
        module = changed


def operator(expression: Any) -> str:
    """The name of the operator that an expression calls, without TVM's prefix; empty for all others."""
    if not isinstance(expression, _tvm.relax.Call) or not isinstance(expression.op, _tvm.ir.Op):
        return ""
    return str(expression.op.name).removeprefix("relax.")


def shape(expression: Any) -> tuple[int, ...]:
    """Of a tensor of known shape; sizes that a call decides are TVM's expressions, which equal themselves alone."""
    sizes = expression.ty.shape.values
    return tuple(int(size) if isinstance(size, _tvm.tirx.IntImm) else size for size in sizes)


def elements(tensor: Any) -> int | None:
    """Of a tensor, by its type; None where a call decides it, or there is no one tensor."""
    sizes = getattr(getattr(tensor, "shape", None), "values", None)
    if sizes is None or not all(isinstance(size, _tvm.tirx.IntImm) for size in sizes):
        return None
    return math.prod(int(size) for size in sizes)


def kernel_of(module: Any, expression: Any) -> Any:
    """The PrimFunc that an expression calls; None where it is something else."""
    called = isinstance(expression, _tvm.relax.Call) and expression.op.same_as(_tvm.ir.Op.get("relax.call_tir"))
    return module[expression.args[0]] if called else None


def pattern_of(kernel: Any) -> int:
    """The kind of an annotated PrimFunc; TVM takes those without a note for opaque."""
    return int(kernel.attrs.get("op_pattern", OPAQUE)) if kernel.attrs else OPAQUE


def axes_of(permutation: Any) -> list[int]:
    """Of a permute_dims: the dimension of the operand that each dimension of the result is."""
    rank = len(shape(permutation))
    axes = permutation.attrs.axes
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]


def is_constant(expression: Any) -> bool:
    """Whether an expression is a constant of the module."""
    return isinstance(expression, _tvm.ir.GenericConst)


def constant(array: Any) -> Any:
    """A constant of an array's own type; TVM makes float32 of float64, and int32 of int64, unless it is told."""
    return _tvm.relax.const(array, str(array.dtype))


def with_attributes(call: Any, arguments: list[Any], **changed: Any) -> Any:
    """A call of the same operator of relax.op.nn with other arguments and some attributes changed."""
    make = getattr(_tvm.relax.op.nn, operator(call).removeprefix("nn."))
    names = list(inspect.signature(make).parameters)[len(arguments) :]
    return make(*arguments, **{name: getattr(call.attrs, name) for name in names} | changed)


def _bindings(function: Any) -> Iterator[tuple[int, Any, Any]]:
    """(number of the block, variable, value) of each binding in the order of computation, then (-1, None, output)."""
    for number, block in enumerate(function.body.blocks):
        yield from ((number, binding.var, binding.value) for binding in block.bindings if hasattr(binding, "value"))
    yield -1, None, function.body.body
