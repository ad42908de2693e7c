"""Interpret programs with NumPy to obtain their expected outputs.

Inputs: a checked program, its ranges, and arrays. Output: an array for each output of the program. Each statement is
computed at once over the grid of all its indices, as the language defines it. No lowering code is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from felixlike.tc.program import Binary, Call, Choose, Convert, Index, Literal, Program, Read, Size, Step, Unary, Value
from felixlike.tc.ranges import Ranges

Array = Any


def interpret(
    program: Program, sizes: Mapping[str, int], ranges: Ranges, given: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the outputs by name.

    `given` maps names to arrays of the parameters and of the outputs that are accumulated into. They are not changed.
    """
    tensors = {name: np.array(array) for name, array in given.items()}
    with np.errstate(all="ignore"):
        for number, step in enumerate(program.steps):
            tensors[step.target] = _Statement(step, sizes, ranges, ranges.domains[number].intervals, tensors).result()
    return {output.name: tensors[output.name] for output in program.outputs}


class _Statement:
    """Evaluate one statement."""

    def __init__(
        self,
        step: Step,
        sizes: Mapping[str, int],
        ranges: Ranges,
        intervals: Mapping[str, tuple[int, int]],
        tensors: Mapping[str, Array],
    ) -> None:
        self._step, self._sizes, self._ranges, self._tensors = step, sizes, ranges, tensors
        names = (*step.indices, *step.reduced)
        self._shape = tuple(intervals[n][1] - intervals[n][0] + 1 for n in names)
        self._indices = {
            n: np.arange(intervals[n][0], intervals[n][1] + 1, dtype=np.int32).reshape(
                [-1 if place == at else 1 for place in range(len(names))]
            )
            for at, n in enumerate(names)
        }

    def result(self) -> Array:
        step = self._step
        value = np.broadcast_to(np.asarray(self._value(step.value), step.value.dtype), self._shape)
        axes = tuple(range(len(step.indices), len(self._shape)))
        if axes:
            reduce = {"+": np.add, "*": np.multiply, "min": np.minimum, "max": np.maximum}[step.operator].reduce
            value = reduce(value, axis=axes, dtype=value.dtype)
        if step.fresh:
            return np.array(value)
        return _OPERATORS[step.operator](self._tensors[step.target], value).astype(value.dtype)

    def _value(self, value: Value) -> Array:
        match value:
            case Literal():
                return np.asarray(value.value, value.dtype)
            case Size():
                return np.asarray(self._sizes[value.name], np.int32)
            case Index():
                return self._indices[value.name]
            case Read():
                return self._read(value)
            case Convert():
                return self._value(value.value).astype(value.dtype)
            case Unary():
                inner = self._value(value.value)
                return np.logical_not(inner) if value.operator == "!" else np.negative(inner)
            case Binary():
                return self._binary(value)
            case Choose():
                return np.where(*(self._value(part) for part in (value.condition, value.left, value.right)))
            case Call():
                return _FUNCTIONS[value.function](*map(self._value, value.arguments)).astype(value.dtype)

    def _read(self, read: Read) -> Array:
        """Read elements, with subscripts clipped to the bounds; elements outside are only read where the result is
        unused.
        """
        bounds = self._ranges.bounds[read.tensor]
        positions = tuple(
            np.clip(self._value(s).astype(np.int64), low, high) - low
            for s, (low, high) in zip(read.subscripts, bounds, strict=True)
        )
        return self._tensors[read.tensor][positions]

    def _binary(self, value: Binary) -> Array:
        left, right = self._value(value.left), self._value(value.right)
        if value.operator == "/" and "float" in value.dtype:
            return np.divide(left, right)
        if value.operator in ("/", "%") and "float" not in value.dtype:
            safe = np.where(right == 0, np.ones_like(right), right)
            quotient = (np.floor_divide if value.operator == "/" else np.remainder)(left, safe)
            return np.where(right == 0, np.zeros_like(quotient), quotient)
        return _OPERATORS[value.operator](left, right)


_OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "%": np.remainder,
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


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(function, otypes=[np.float64])


def _half_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _rest(x: Array, y: Array) -> Array:
    return np.vectorize(math.remainder, otypes=[np.float64])(x, y)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{name: getattr(np, f"arc{name[1:]}") for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{
        name: getattr(np, name)
        for name in (
            *("cbrt", "ceil", "cos", "cosh", "exp", "exp2", "expm1", "floor", "log", "log10", "log1p", "log2", "sin"),
            *("sinh", "sqrt", "tan", "tanh", "trunc", "copysign", "fmax", "fmin", "fmod", "hypot", "nextafter"),
        )
    },
    "atan2": np.arctan2,
    "cospi": lambda x: np.cos(np.pi * x.astype(np.float64)),
    "cyl_bessel_i0": lambda x: np.i0(x.astype(np.float64)),
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "exp10": lambda x: np.power(10.0, x),
    "fabs": np.abs,
    "fdim": lambda x, y: np.maximum(x - y, 0),
    "fdivide": np.divide,
    "fma": lambda x, y, z: x * y + z,
    "lgamma": _each(math.lgamma),
    "logb": lambda x: np.floor(np.log2(np.abs(x))),
    "norm3d": lambda *parts: np.sqrt(sum(part * part for part in parts)),
    "norm4d": lambda *parts: np.sqrt(sum(part * part for part in parts)),
    "normcdf": _each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
    "pow": np.power,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "remainder": _rest,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "rnorm3d": lambda *parts: 1 / np.sqrt(sum(part * part for part in parts)),
    "rnorm4d": lambda *parts: 1 / np.sqrt(sum(part * part for part in parts)),
    "round": _half_away,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sinpi": lambda x: np.sin(np.pi * x.astype(np.float64)),
    "tgamma": _each(math.gamma),
}
"""Functions provided by NumPy and the math module."""
