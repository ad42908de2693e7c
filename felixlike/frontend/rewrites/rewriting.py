"""Apply rewrite rules to a Relax module. A rule sees one expression at a time, and the bindings of its function."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from felixlike import _tvm
from felixlike.frontend.constants import OWN_ROUNDINGS

if TYPE_CHECKING:
    import torch

Rule = Callable[[Any, "Bindings", "Rewriter"], Any]
"""(call or tuple element, bindings of its function, rewriter) → replacement, or None for no change."""

BROADCAST, INJECTIVE, OUT_FUSIBLE, OPAQUE = 1, 2, 4, 8
"""TVM's kinds of PrimFuncs.

Kinds up to BROADCAST are fused behind reductions. Kinds up to INJECTIVE compute each element from single elements.
Elementwise operators may be fused behind OUT_FUSIBLE. OPAQUE is never fused.
"""


class Bindings:
    """Index the bindings of a Relax function: the value of each variable, and its readers.

    Attributes:
        has_own_roundings: Whether the model itself rounds tensors to bfloat16.
    """

    def __init__(self, function: Any) -> None:
        self.has_own_roundings = bool(function.attrs and OWN_ROUNDINGS in function.attrs)
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
        """Return the value bound to a variable. Inputs and other expressions are returned unchanged."""
        return self._values.get(_tvm.identity(expression), expression)

    def variable(self, value: Any) -> Any:
        """Return the variable that a value is bound to, None for the function's output and subexpressions."""
        return self._variables.get(_tvm.identity(value))

    def block(self, value: Any) -> int:
        """Return the index of the block that binds a value, or -1 for a subexpression."""
        return self._blocks.get(_tvm.identity(value), -1)

    def readers(self, variable: Any) -> list[Any]:
        """Return the bound values that read a variable, and the function's output if it does."""
        return self._readers.get(_tvm.identity(variable), [])

    def once(self, variable: Any) -> bool:
        """Return whether a variable has exactly one reader."""
        return len(self.readers(variable)) == 1


class Rewriter:
    """Build the new function in a rule.

    Attributes:
        module: The module that is rewritten.
        builder: TVM's block builder of the new function. Its variables get the span of the one that is rewritten.
        new: Maps an expression of the old function to the new one.
    """

    def __init__(self, visitor: Any, variable: Any) -> None:
        span = None if variable is None else variable.span
        self.module = visitor.module
        self.builder = visitor.builder_ if span is None else _Spanning(visitor.builder_, span)
        self.new = visitor.visit_expr


class _Spanning:
    """A block builder whose variables have a span, which is the label of a layer (`frontend/rewrites/layers.py`)."""

    def __init__(self, builder: Any, span: Any) -> None:
        self._builder, self._span = builder, span

    def emit(self, expression: Any) -> Any:
        """Emit an expression as TVM's builder does, and return its variable."""
        value = self._builder.normalize(expression)
        flow = self._builder.current_block_is_dataflow()
        kind, prefix = (_tvm.relax.DataflowVar, "lv") if flow else (_tvm.relax.Var, "gv")
        variable = kind(self._builder.get_unique_name(prefix), value.ty, self._span)
        self._builder.emit_normalized(_tvm.relax.VarBinding(variable, value))
        return variable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)


def rewritten(module: Any, rule: Rule) -> Any:
    """Apply a rule to every call and tuple element in a module's Relax functions, and remove dead code."""
    relax = _tvm.relax
    visitor = _visitor()(module, rule)
    for variable, function in functions_of(module):
        visitor.bindings = Bindings(function)
        visitor.builder_.update_func(variable, visitor.visit_expr(function))
    return relax.transform.DeadCodeElimination()(visitor.builder_.get())


def functions_of(module: Any) -> list[tuple[Any, Any]]:
    """Return the Relax functions of a module, with their variables."""
    return [(v, f) for v, f in module.functions.items() if isinstance(f, _tvm.relax.Function)]


@functools.cache
def _visitor() -> Any:
    """Return the class of TVM's object that applies a rule. TVM never frees such classes, nor what they refer to."""
    relax = _tvm.relax

    class Visitor(relax.PyExprMutator):  # type: ignore[misc,name-defined]
        def __init__(self, module: Any, rule: Rule) -> None:
            super().__init__(module)
            self.module = module
            self.rule = rule
            self.bindings: Bindings | None = None

        def visit_call_(self, call: Any) -> Any:
            replacement = self._replacement(call)
            return super().visit_call_(call) if replacement is None else replacement

        def visit_tuple_getitem_(self, element: Any) -> Any:
            replacement = self._replacement(element)
            return super().visit_tuple_getitem_(element) if replacement is None else replacement

        def _replacement(self, value: Any) -> Any:
            assert self.bindings is not None
            return self.rule(value, self.bindings, Rewriter(self, self.bindings.variable(value)))

    return relax.expr_functor.mutator(Visitor)


def settled(module: Any, rule: Rule) -> Any:
    """Apply a rule until it changes nothing."""
    while True:
        changed = rewritten(module, rule)
        if _tvm.structural_equal(changed, module):
            return module
        module = changed


def operator(expression: Any) -> str:
    """Return the name of the operator that an expression calls, without TVM's prefix, or "" for other expressions."""
    if not isinstance(expression, _tvm.relax.Call) or not isinstance(expression.op, _tvm.ir.Op):
        return ""
    return str(expression.op.name).removeprefix("relax.")


def shape(expression: Any) -> tuple[int, ...]:
    """Return the shape of a tensor of known rank. A dynamic size is TVM's expression, which equals only itself."""
    sizes = expression.ty.shape.values
    return tuple(int(size) if isinstance(size, _tvm.tirx.IntImm) else size for size in sizes)


def elements(tensor: Any) -> int | None:
    """Return the number of elements of a tensor type, or None for dynamic sizes and tuples."""
    sizes = getattr(getattr(tensor, "shape", None), "values", None)
    if sizes is None or not all(isinstance(size, _tvm.tirx.IntImm) for size in sizes):
        return None
    return math.prod(int(size) for size in sizes)


def kernel_of(module: Any, expression: Any) -> Any:
    """Return the PrimFunc that an expression calls, or None."""
    called = isinstance(expression, _tvm.relax.Call) and expression.op.same_as(_tvm.ir.Op.get("relax.call_tir"))
    return module[expression.args[0]] if called else None


def pattern_of(kernel: Any) -> int:
    """Return the kind of an annotated PrimFunc. TVM treats those without an annotation as opaque."""
    return int(kernel.attrs.get("op_pattern", OPAQUE)) if kernel.attrs else OPAQUE


def axes_of(permutation: Any) -> list[int]:
    """Return the dimension of the operand for each dimension of a permute_dims' result."""
    rank = len(shape(permutation))
    axes = permutation.attrs.axes
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]


def reached(first: Any, following: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Yield an expression and those that follow from it, directly or through others, each once."""
    pending, seen = [first], set()
    while pending:
        expression = pending.pop()
        if (name := _tvm.identity(expression)) in seen:
            continue
        seen.add(name)
        yield expression
        pending += following(expression)


def is_constant(expression: Any) -> bool:
    """Return whether an expression is a constant of the module."""
    return isinstance(expression, _tvm.ir.GenericConst)


def constant(array: Any) -> Any:
    """Return a constant of an array's own dtype.

    Without a dtype, TVM converts float64 to float32 and int64 to int32.
    """
    return _tvm.relax.const(array, str(array.dtype))


def tensor_of(constant: Any) -> torch.Tensor:
    """Return the torch.Tensor of a constant, whose memory it shares."""
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(constant.value)


def constant_of(tensor: torch.Tensor) -> Any:
    """Return a constant of a torch.Tensor.

    It is copied only if it is not contiguous. A constant of a numpy array is a copy, since kernels need aligned data.
    """
    return _tvm.relax.const(_tvm.runtime.from_dlpack(tensor.contiguous()))


def with_attributes(call: Any, arguments: list[Any], **changed: Any) -> Any:
    """Return a call of the same relax.op.nn operator with other arguments and some attributes changed."""
    make = getattr(_tvm.relax.op.nn, operator(call).removeprefix("nn."))
    names = list(inspect.signature(make).parameters)[len(arguments) :]
    return make(*arguments, **{name: getattr(call.attrs, name) for name in names} | changed)


def _bindings(function: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield (index of the block, variable, value) of each binding in order, then (-1, None, output)."""
    for number, block in enumerate(function.body.blocks):
        yield from ((number, binding.var, binding.value) for binding in block.bindings if hasattr(binding, "value"))
    yield -1, None, function.body.body


def copy_of(x: Any, name: str) -> Any:
    """Return the TE tensor of a copy."""
    return _tvm.te.compute(x.shape, lambda *place: x(*place), name=name)
