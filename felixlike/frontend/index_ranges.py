"""How far the values of a model's integer inputs may go, where they serve as indices.

In: a Relax module, before any pass. Out: for each input that reaches an index, a limit that its values must stay
below. The bindings are walked from the last to the first: what indexes a table is below the table's size, and so is
what it was reshaped, sliced or joined from; sums and products with constants move the limit.
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
"""The limit of what reaches an index in a way that is not understood: 0 is an index of every table."""

_SAME = (
    *("reshape", "flatten", "expand_dims", "squeeze", "permute_dims", "broadcast_to", "astype", "strided_slice"),
    *("concat", "stack", "split", "tile", "repeat", "flip", "roll", "maximum", "floor_mod", "mod"),
)
"""Operators that give some of the integers that they take. `floor_mod` counts indices from the end of a table."""

_BOUNDED = (
    *("clip", "minimum", "take", "gather_elements", "gather_nd", "index_tensor"),
    *("argmax", "argmin", "argsort", "arange"),
)
"""Operators whose result is in a range that does not depend on the range of an input, or that are looked at below."""


def index_limits(module: Any) -> dict[int, int]:
    """Return, for each parameter of "main" by its place, what the indices among its values must be below."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    values = {binding.var: getattr(binding, "value", None) for binding in bindings}
    found = _Limits(module, values)
    for variable, value in reversed(values.items()):
        found.visit(variable, value)
    places = {parameter: place for place, parameter in enumerate(main.params)}
    return {places[variable]: limit for variable, limit in found.known.items() if variable in places}


class _Limits:
    """known: a variable → its limit."""

    def __init__(self, module: Any, values: Mapping[Any, Any]) -> None:
        """values: of the variables that are bound."""
        self.module, self._values = module, values
        self.known: dict[Any, int] = {}

    def visit(self, variable: Any, value: Any) -> None:
        """Hand the limit of a variable on to what it was computed from, and note what its own value indexes."""
        relax = _tvm.relax
        limit = self.known.get(variable)
        if isinstance(value, relax.Call):
            name = str(getattr(value.op, "name", "")).removeprefix("relax.")
            if name in _INDEXING:
                _INDEXING[name](self, value)
            if limit is not None:
                self._through(name, list(value.args), limit, value)
        elif limit is not None:
            self.limit(value.tuple_value if isinstance(value, relax.TupleGetItem) else value, limit)

    def limit(self, value: Any, limit: int) -> None:
        """Note that a value must stay below a limit, if it is an integer variable or a tuple of such."""
        relax = _tvm.relax
        if isinstance(value, relax.Tuple):
            for inner in value.fields:
                self.limit(inner, limit)
        elif isinstance(value, relax.Var) and "bool" not in str(getattr(value.ty, "dtype", "")):
            self.known[value] = min(limit, self.known.get(value, limit))

    def _through(self, name: str, args: list[Any], limit: int, call: Any) -> None:
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
        """Where negative indices are counted from the end, i + size or i, only i matters."""
        computed: Any = self._values.get(value) if isinstance(value, _tvm.relax.Var) else None
        added = computed.args if str(getattr(getattr(computed, "op", None), "name", "")) == "relax.add" else ()
        self.limit(otherwise, limit)
        if not any(argument.same_as(otherwise) for argument in added):
            self.limit(value, limit)

    def _through_arithmetic(self, name: str, args: list[Any], limit: int) -> None:
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
    """The smallest and the largest element of an integer constant; None for anything else."""
    if not isinstance(value, _tvm.ir.GenericConst) or "int" not in str(value.value.dtype):
        return None
    array = value.value.numpy()
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


def _terms(call: Any, argument: Any) -> int:
    """How many numbers a sum adds up, at most."""
    sizes = _sizes(argument)
    axes = call.attrs.axis
    if axes is None:
        return max(1, math.prod(sizes))
    axes = [axes] if isinstance(axes, int) or not hasattr(axes, "__len__") else list(axes)
    return max(1, math.prod(sizes[int(axis)] for axis in axes))


def _sizes(value: Any) -> list[int]:
    """The sizes of a tensor; the least that it can have, 1, for those that a call decides."""
    values = getattr(value.ty.shape, "values", ())
    return [int(size) if isinstance(size, _tvm.tirx.IntImm) else 1 for size in values]


def _take(limits: _Limits, call: Any) -> None:
    axis = call.attrs.axis
    sizes = _sizes(call.args[0])
    limits.limit(call.args[1], math.prod(sizes) if axis is None else sizes[int(axis)])


def _elements(limits: _Limits, call: Any) -> None:
    limits.limit(call.args[1], _sizes(call.args[0])[int(call.attrs.axis)])


def _points(limits: _Limits, call: Any) -> None:
    limits.limit(call.args[1], min(_sizes(call.args[0]), default=UNKNOWN))


def _tensors(limits: _Limits, call: Any) -> None:
    fields = call.args[1].fields if isinstance(call.args[1], _tvm.relax.Tuple) else [call.args[1]]
    for index, size in zip(fields, _sizes(call.args[0]), strict=False):
        limits.limit(index, size)


def _one_hot(limits: _Limits, call: Any) -> None:
    limits.limit(call.args[0], int(call.attrs.depth))


def _primfunc(limits: _Limits, call: Any) -> None:
    """What a PrimFunc indexes, as its loads and stores say."""
    func = limits.module[call.args[0]]
    given = call.args[1].fields if isinstance(call.args[1], _tvm.relax.Tuple) else [call.args[1]]
    with contextlib.suppress(InvalidModel):  # of open sizes: nothing is known
        for value, argument in zip(given, arguments(func), strict=False):
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
"""What operators do with a table and indices of it."""
