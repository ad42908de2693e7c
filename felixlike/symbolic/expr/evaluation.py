"""Evaluate expressions at one point, or at many points in one vectorised pass over the graph.

Input: expressions and values of their variables. Output: float64 numbers, exact for integer results below 2^53.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.expr.node import Number, Op
from felixlike.symbolic.expr.traversal import topological

Array = npt.NDArray[np.float64]


def evaluate(expression: Expr, values: Mapping[str, Number]) -> float:
    """Return the value of an expression at one point.

    Args:
        expression: The expression.
        values: Values by variable name.

    Raises:
        KeyError: If a variable has no value.
    """
    names = {v.name: np.array([float(values[v.name])]) for v in topological([expression]) if v.op is Op.VAR}
    return float(Graph([expression]).evaluate(names, 1)[0, 0])


class Graph:
    """Prepare expressions for repeated evaluation; shared parts are computed once."""

    def __init__(self, roots: Sequence[Expr]) -> None:
        self.roots = tuple(roots)
        nodes = topological(self.roots)
        position = {node: i for i, node in enumerate(nodes)}
        self._steps = [(node, tuple(position[a] for a in node.args)) for node in nodes]
        self._outputs = [position[root] for root in self.roots]
        self._last_use = _last_uses(self._steps, self._outputs)

    def __len__(self) -> int:
        return len(self._steps)

    def evaluate(self, values: Mapping[str, Array], count: int) -> Array:
        """Return the values of the roots: float64[count, roots].

        Args:
            values: float64[count] by variable name.
            count: The number of points.
        """
        results: list[Any] = [None] * len(self._steps)
        for i, (node, args) in enumerate(self._steps):
            results[i] = _compute(node, [results[a] for a in args], values)
            for dead in self._last_use.get(i, ()):
                results[dead] = None
        columns = np.empty((count, len(self._outputs)))
        for column, i in enumerate(self._outputs):
            columns[:, column] = results[i]  # a constant fills its column
        return columns


def _last_uses(steps: Sequence[tuple[Expr, tuple[int, ...]]], outputs: Sequence[int]) -> dict[int, list[int]]:
    """Return, for each step, the results that are not needed after it, so that they can be freed."""
    last: dict[int, int] = {}
    for i, (_, args) in enumerate(steps):
        for a in args:
            last[a] = i
    output_set = set(outputs)
    dead: dict[int, list[int]] = {}
    for a, i in last.items():
        if a not in output_set:
            dead.setdefault(i, []).append(a)
    return dead


_OF_TWO: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.FLOORDIV: np.floor_divide,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
}
"""NumPy functions of operators with two arguments."""


def _compute(node: Expr, args: Sequence[Any], values: Mapping[str, Array]) -> Any:
    """Return the value of a node for the values of its arguments."""
    match node.op:
        case Op.CONST:
            return float(node.value)
        case Op.VAR:
            return values[node.name]
        case Op.ADD:
            total, *coefficients = node.payload
            for argument, coefficient in zip(args, coefficients, strict=True):
                total = total + argument if coefficient == 1 else total + coefficient * argument
            return total
        case Op.MUL:
            return math.prod(_power(a, e) for a, e in zip(args, node.payload, strict=True))  # type: ignore[arg-type]
        case Op.FLOORDIV | Op.MIN | Op.MAX:
            return _OF_TWO[node.op](args[0], args[1])
        case Op.AT_LEAST:
            # Integer-valued arguments may carry a rounding error from division.
            return np.where(np.asarray(args[0]) >= node.payload[0] - 1e-6, 1.0, 0.0)  # type: ignore[operator]
        case Op.SELECT:
            return np.where(np.asarray(args[0]) > 0.5, args[1], args[2])


def _power(base: Any, exponent: int) -> Any:
    """Return base ^ exponent, avoiding `pow` for exponents 1 and -1."""
    if exponent == 1:
        return base
    if exponent == -1:
        return 1.0 / base
    return base**exponent
