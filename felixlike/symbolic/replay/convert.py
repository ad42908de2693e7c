"""Convert TVM index expressions to ours, and back.

Input: a TVM PrimExpr over loop variables, block iterators and tile variables, with a table of their expressions.
Output: an expanded `Expr`. Operators that are not allowed in an affine index raise UnsupportedSketch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import TirExpr
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.comparison import at_least, maximum, minimum, select
from felixlike.symbolic.expr.expression import Expr, add, const, floordiv, mul
from felixlike.symbolic.expr.node import Number, Op, linear_parts, product_parts
from felixlike.symbolic.expr.polynomial import expand, nonnegative
from felixlike.symbolic.expr.traversal import variables


def to_expr(tvm_expr: TirExpr, table: Mapping[Any, Expr]) -> Expr:
    """Return a TVM expression over the variables of `table`, expanded, so that equal extents are the same object."""
    return expand(_convert(tvm_expr, table))


def from_expr(expression: Expr, table: Mapping[Expr, Any], like: Any) -> Any:
    """Return the TVM expression of an index, the inverse of `to_expr`.

    Terms are in the order of `table`, by the last variable of each.

    Args:
        expression: The index.
        table: TVM's variable of each variable.
        like: A TVM expression with the integer type to use.

    Raises:
        UnsupportedSketch: For gates, selects, quotients that are not floored, and variables that are not in the table.
    """
    match expression.op:
        case Op.CONST:
            return _tvm.tirx.const(int(expression.value), str(like.ty.dtype))
        case Op.VAR if expression in table:
            return table[expression]
        case Op.ADD:
            constant, terms = linear_parts(expression)
            places = {variable: place for place, variable in enumerate(table)}
            terms = sorted(terms, key=lambda pair: max(places.get(v, 0) for v in variables([pair[0]])))
            parts = [from_expr(term, table, like) * int(factor) for term, factor in terms]
            return sum(parts[1:], parts[0]) + int(constant)
        case Op.MUL if all(exponent > 0 for _, exponent in product_parts(expression)[1]):
            powers = [(from_expr(b, table, like), e) for b, e in product_parts(expression)[1]]
            factors = [base for base, exponent in powers for _ in range(exponent)]
            return math.prod(factors[1:], start=factors[0])
        case Op.FLOORDIV | Op.MIN | Op.MAX:
            a, b = (from_expr(argument, table, like) for argument in expression.args)
            make = {Op.FLOORDIV: _tvm.tirx.floordiv, Op.MIN: _tvm.tirx.min, Op.MAX: _tvm.tirx.max}
            return make[expression.op](a, b)
    raise UnsupportedSketch(f"{expression} cannot be converted to an affine index", where="index expression")


def _convert(node: TirExpr, table: Mapping[Any, Expr]) -> Expr:
    """Return a TVM expression as an unexpanded `Expr`."""
    kind = type(node).__name__
    match kind:
        case "IntImm":
            return const(int(node.value))
        case "Var" | "PrimVar" | "SizeVar":
            if node in table:
                return table[node]
            raise UnsupportedSketch(f"unknown variable {node}", where="index expression")
        case "Cast":
            return _convert(node.value, table)
        case "Add" | "Sub" | "Mul" | "Min" | "Max" | "FloorDiv" | "FloorMod":
            return _BINARY[kind](_convert(node.a, table), _convert(node.b, table))
        case "Div" | "Mod":
            a, b = _convert(node.a, table), _convert(node.b, table)
            if nonnegative(expand(a)) and nonnegative(expand(b - 1)):  # Div and Mod round towards zero
                return _BINARY[f"Floor{kind}"](a, b)
        case "Select":
            gate = _comparison(node.condition, table)
            return select(gate, _convert(node.true_value, table), _convert(node.false_value, table))
    raise UnsupportedSketch(f"unsupported operator {kind} in an affine index", where=str(node)[:80])


def _comparison(node: TirExpr, table: Mapping[Any, Expr]) -> Expr:
    """Return the gate of a TVM comparison."""
    kind = type(node).__name__
    if kind not in ("GE", "GT", "LE", "LT"):
        raise UnsupportedSketch(f"unsupported comparison {kind}", where=str(node)[:80])
    a, b = _convert(node.a, table), _convert(node.b, table)
    difference = expand(a - b if kind in ("GE", "GT") else b - a)
    return at_least(difference, 0 if kind in ("GE", "LE") else 1)


def _floordiv(a: Expr, b: Expr) -> Expr:
    """Return ⌊a / b⌋; x if a = x·b + r with 0 ≤ r < b is found."""
    parts = _quotient_and_rest(a, b)
    return floordiv(a, b) if parts is None else parts[0]


def _floormod(a: Expr, b: Expr) -> Expr:
    """Return a mod b; r if a = x·b + r with 0 ≤ r < b is found."""
    parts = _quotient_and_rest(a, b)
    return a - b * floordiv(a, b) if parts is None else parts[1]


def _quotient_and_rest(a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """Return (x, r) with a = x·b + r and 0 ≤ r < b for all values of the variables; None if none is found."""
    constant, terms = linear_parts(expand(a))
    scale, divisor = product_parts(b)
    quotient: list[Expr | Number] = []
    rest: list[Expr | Number] = [constant]
    for term, factor in terms:
        exponents = dict(product_parts(term)[1])
        if factor % scale == 0 and all(exponents.get(base, 0) >= e for base, e in divisor):
            quotient.append(term * factor / b)
        else:
            rest.append(term * factor)
    remainder = add(rest)
    if nonnegative(remainder) and nonnegative(b - remainder - 1):
        return add(quotient), remainder
    return None


_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: mul((a, b)),
    "Min": lambda a, b: minimum(expand(a), expand(b)),
    "Max": lambda a, b: maximum(expand(a), expand(b)),
    "FloorDiv": _floordiv,
    "FloorMod": _floormod,
}
"""The conversion of each of TVM's operators with two arguments."""
