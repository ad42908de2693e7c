"""Evaluate values that depend on indices and sizes alone, at all points of a grid.

Input: a value, an array per index. Output: an array that broadcasts over them. Used to compute bounds of ranges and to
decide whether a test keeps an access within its tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from felixlike.tc.program import Binary, Call, Choose, Convert, Index, Literal, Size, Unary, Value
from felixlike.tc.scalars import is_integral

Array = Any
"""A numpy array or scalar."""


class Unknown(Exception):
    """Raised if a value depends on tensors or on a function that is not evaluated here."""


def on_grid(value: Value, indices: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    """Evaluate a value at all points of the grid. Raise Unknown, ZeroDivisionError."""
    with np.errstate(all="ignore"):
        return _value(value, indices, sizes)


def _value(value: Value, indices: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    match value:
        case Literal():
            return np.asarray(value.value, np.int64 if isinstance(value.value, int) else value.dtype)
        case Size() | Index():
            return np.asarray(sizes[value.name] if isinstance(value, Size) else indices[value.name], np.int64)
        case Convert():
            return _converted(_value(value.value, indices, sizes), value.dtype)
        case Unary():
            inner = _value(value.value, indices, sizes)
            return np.logical_not(inner) if value.operator == "!" else _wrapped(-inner, value.dtype)
        case Binary():
            result = _binary(value, _value(value.left, indices, sizes), _value(value.right, indices, sizes))
            return _wrapped(result, value.dtype)
        case Choose():
            chosen = (_value(part, indices, sizes) for part in (value.condition, value.left, value.right))
            return np.where(*chosen)
        case Call() if value.function in _FUNCTIONS:
            return _FUNCTIONS[value.function](*(_value(part, indices, sizes) for part in value.arguments))
    raise Unknown


def _binary(value: Binary, left: Array, right: Array) -> Array:
    if value.operator in ("/", "%") and not np.all(right) and "float" not in value.dtype:
        raise ZeroDivisionError
    return _OPERATORS[_named(value)](left, right)


def _wrapped(array: Array, dtype: str) -> Array:
    """Return a result of arithmetic in its type; integers are computed in int64, those of other types wrap."""
    return _converted(array, dtype) if is_integral(dtype) and dtype != "int64" else array


def _converted(array: Array, dtype: str) -> Array:
    """Convert as C does: floats are truncated, integers wrap."""
    if dtype.startswith("float"):
        return array.astype(dtype)
    if array.dtype.kind == "f":
        array = np.trunc(array)
    return array.astype(dtype).astype(np.int64 if dtype != "bool" else np.bool_)


def _named(value: Binary) -> str:
    """Return the key of an operator, "/f" for float division."""
    return f"{value.operator}f" if value.operator == "/" and "float" in value.dtype else value.operator


_OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.floor_divide,
    "/f": np.divide,
    "%": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&&": np.logical_and,
    "||": np.logical_or,
}

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{name: getattr(np, f"arc{name[1:]}") for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{
        name: getattr(np, name)
        for name in (
            *("ceil", "cos", "cosh", "exp", "exp2", "floor", "fmax", "fmin", "hypot", "log", "log10", "log1p", "log2"),
            *("sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
        )
    },
    "fabs": np.abs,
    "pow": np.power,
}
"""Functions evaluated here, in the type of their arguments."""
