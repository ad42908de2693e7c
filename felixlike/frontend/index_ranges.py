"""Derive upper limits for the values of a model's integer inputs that serve as indices.

Input: a Relax module, before any pass. Output: for each input that reaches an index, an exclusive upper limit. The
bindings are visited from the last to the first. An index is below the table's size, and so are the values it was
reshaped, sliced or joined from. Sums and products with constants move the limit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidModel
from felixlike.frontend.signature.arguments import arguments

UNKNOWN = 1
"""Limit of values that reach an index in a way that cannot be analysed: 0 is a valid index of every table."""

_SAME = (
    *("reshape", "flatten", "expand_dims", "squeeze", "permute_dims", "broadcast_to", "astype", "strided_slice"),
    *("concat", "stack", "split", "tile", "repeat", "flip", "roll", "maximum", "floor_mod", "mod"),
)
"""Operators that return some of their input integers. `floor_mod` counts indices from the end of a table."""

_BOUNDED = (
    *("clip", "minimum", "take", "gather_elements", "gather_nd", "index_tensor"),
    *("argmax", "argmin", "argsort", "arange"),
)
"""Operators whose result has a range independent of their inputs', or that `_INDEXING` handles."""


def index_limits(module: Any) -> dict[int, int]:
    """Return the exclusive upper limit of the indices in each parameter of "main", by the parameter's position."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    values = {binding.var: getattr(binding, "value", None) for binding in bindings}
    limits = _Limits(module, values)
    for variable, value in reversed(values.items()):
        limits.visit(variable, value)
    places = {parameter: place for place, parameter in enumerate(main.params)}
    return {places[variable]: limit for variable, limit in limits.known.items() if variable in places}


class _Limits:
    """Propagate limits from the uses of variables to their definitions. `known` maps a variable to its limit."""

    def __init__(self, module: Any, values: Mapping[Any, Any]) -> None:
        """Start without limits.  values: what each variable is bound to."""
        self.module, self._values = module, values
        self.known: dict[Any, int] = {}

    def visit(self, variable: Any, value: Any) -> None:
        """Propagate a variable's limit to the operands it was computed from, and record what its own value indexes."""
        relax = _tvm.relax
        limit = self.known.get(variable)
        if isinstance(value, relax.Call):
            name = str(getattr(value.op, "name", "")).removeprefix("relax.")
            if name in _INDEXING:
                _INDEXING[name](self, value)
            if name == "call_dps_packed":  # PyTorch's kernels raise for some integers
                self.limit(value.args[1], UNKNOWN)
            if limit is not None:
                self._through(name, list(value.args), limit, value)
        elif limit is not None:
            self.limit(value.tuple_value if isinstance(value, relax.TupleGetItem) else value, limit)

    def limit(self, value: Any, limit: int) -> None:
        """Record that a value must stay below a limit, if it is an integer variable or a tuple of such."""
        relax = _tvm.relax
        if isinstance(value, relax.Tuple):
            for inner in value.fields:
                self.limit(inner, limit)
        elif isinstance(value, relax.Var) and "bool" not in str(getattr(value.ty, "dtype", "")):
            self.known[value] = min(limit, self.known.get(value, limit))

    def _through(self, name: str, args: list[Any], limit: int, call: Any) -> None:
        """Propagate the limit of an operator's result to its operands."""
        if name == "where":
            self._through_where(args[1], args[2], limit)
        elif name in _SAME:
            for argument in args:
                self.limit(argument, limit)
        elif name in ("add", "subtract", "multiply"):
            self._through_arithmetic(name, args, limit)
        elif name in ("sum", "cumsum"):
            terms = _terms(call, args[0])
            self.limit(args[0], max(UNKNOWN, (limit - 1) // terms + 1))
        elif name not in _BOUNDED:
            for argument in args:
                self.limit(argument, UNKNOWN)

    def _through_where(self, value: Any, otherwise: Any, limit: int) -> None:
        """Propagate a limit to the operands of where.

        In where(…, i + size, i), which counts negative indices from the end, only i is limited.
        """
        computed: Any = self._values.get(value) if isinstance(value, _tvm.relax.Var) else None
        added = computed.args if str(getattr(getattr(computed, "op", None), "name", "")) == "relax.add" else ()
        self.limit(otherwise, limit)
        if not any(argument.same_as(otherwise) for argument in added):
            self.limit(value, limit)

    def _through_arithmetic(self, name: str, args: list[Any], limit: int) -> None:
        """Propagate a limit through a sum, difference or product, of two tensors or with a constant."""
        constants = [_range(argument) for argument in args]
        for argument, other in zip(args, reversed(constants), strict=True):
            if other is None:
                self.limit(argument, max(UNKNOWN, (limit + 1) // 2))
            elif name == "multiply":
                self.limit(argument, (limit - 1) // max(1, other[1]) + 1 if other[0] >= 0 else UNKNOWN)
            elif name == "add":
                self.limit(argument, max(UNKNOWN, limit - other[1]))
            else:
                self.limit(argument, max(UNKNOWN, limit + min(0, other[0])))


def _range(value: Any) -> tuple[int, int] | None:
    """Return the smallest and the largest element of an integer constant, or None for anything else."""
    if not isinstance(value, _tvm.ir.GenericConst) or "int" not in str(value.value.dtype):
        return None
    array = value.value.numpy()
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


_MOST_TERMS = 2**62
"""More terms than any sum has. It stands for a number that is not known before a call, so that no limit is too high."""


def _terms(call: Any, argument: Any) -> int:
    """Return the number of terms of a sum, `_MOST_TERMS` if a call decides it."""
    sizes = list(getattr(argument.ty.shape, "values", ()))
    axes = call.attrs.axis
    if axes is not None:
        axes = [axes] if isinstance(axes, int) or not hasattr(axes, "__len__") else list(axes)
        sizes = [sizes[int(axis)] for axis in axes]
    if not all(isinstance(size, _tvm.tirx.IntImm) for size in sizes):
        return _MOST_TERMS
    return max(1, math.prod(int(size) for size in sizes))


def _sizes(value: Any) -> list[int]:
    """Return the sizes of a tensor. Dynamic sizes count as 1, their minimum."""
    values = getattr(value.ty.shape, "values", ())
    return [int(size) if isinstance(size, _tvm.tirx.IntImm) else 1 for size in values]


def _take(limits: _Limits, call: Any) -> None:
    """Limit the indices of take by the size of the table's axis."""
    axis = call.attrs.axis
    sizes = _sizes(call.args[0])
    limits.limit(call.args[1], math.prod(sizes) if axis is None else sizes[int(axis)])


def _elements(limits: _Limits, call: Any) -> None:
    """Limit the indices of gather_elements and scatter_elements by the size of the axis."""
    limits.limit(call.args[1], _sizes(call.args[0])[int(call.attrs.axis)])


def _points(limits: _Limits, call: Any) -> None:
    """Limit the indices of gather_nd and scatter_nd by the table's smallest size."""
    limits.limit(call.args[1], min(_sizes(call.args[0]), default=UNKNOWN))


def _tensors(limits: _Limits, call: Any) -> None:
    """Limit each index of index_tensor and index_put by the size of its dimension."""
    fields = call.args[1].fields if isinstance(call.args[1], _tvm.relax.Tuple) else [call.args[1]]
    for index, size in zip(fields, _sizes(call.args[0]), strict=False):
        limits.limit(index, size)


def _one_hot(limits: _Limits, call: Any) -> None:
    """Limit the values of one_hot by its depth."""
    limits.limit(call.args[0], int(call.attrs.depth))


def _primfunc(limits: _Limits, call: Any) -> None:
    """Record the limits of what a PrimFunc indexes, from its loads and stores."""
    func = limits.module[call.args[0]]
    operands = call.args[1].fields if isinstance(call.args[1], _tvm.relax.Tuple) else [call.args[1]]
    with contextlib.suppress(InvalidModel):  # open sizes give no limits
        for value, argument in zip(operands, arguments(func), strict=False):
            if argument.below is not None:
                limits.limit(value, argument.below)


_INDEXING: Mapping[str, Callable[[_Limits, Any], None]] = {
    "take": _take,
    "gather_elements": _elements,
    "scatter_elements": _elements,
    "gather_nd": _points,
    "scatter_nd": _points,
    "index_tensor": _tensors,
    "index_put": _tensors,
    "one_hot": _one_hot,
    "call_tir": _primfunc,
}
"""Handlers of the operators that index a table, by operator."""
