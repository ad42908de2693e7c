"""Build and recognize values that are -inf unless a condition holds, as masked scores of attention are.

Such a value has one form, `Select(condition, value, -inf)`, whatever operators a model masks with. A sum with -inf is
-inf here, even if the other term is NaN or inf.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import TirExpr


def masked(value: TirExpr) -> tuple[Any, Any] | None:
    """Return the condition and value of an expression that is -inf if the condition does not hold, else None."""
    if not isinstance(value, _tvm.tirx.Select) or not _is_lowest(value.false_value):
        return None
    return value.condition, value.true_value


def comparisons(value: TirExpr) -> list[Any]:
    """Return the comparisons of positions, of which each must hold or a masked value is -inf."""
    inner = masked(value)
    tests = [] if inner is None else conjuncts(inner[0])
    kinds = (_tvm.tirx.LT, _tvm.tirx.LE, _tvm.tirx.GT, _tvm.tirx.GE)
    return [test for test in tests if isinstance(test, kinds) and not _tvm.found(test, _tvm.ir.TensorLoad)]


def conjuncts(condition: TirExpr) -> list[Any]:
    """Return the conditions whose conjunction is a condition."""
    if not isinstance(condition, _tvm.tirx.And):
        return [condition]
    return [*conjuncts(condition.a), *conjuncts(condition.b)]


def with_mask(condition: TirExpr, value: TirExpr) -> TirExpr:
    """Return a value that is -inf unless a condition holds. If the value is masked too, both conditions must hold."""
    inner = masked(value)
    if inner is not None:
        condition, value = _tvm.tirx.all(condition, inner[0]), inner[1]
    return _tvm.tirx.Select(condition, value, _tvm.tirx.const(-math.inf, str(value.ty.dtype)))


def masked_sum(first: TirExpr, second: TirExpr) -> TirExpr:
    """Return the sum of two values of floats, masked where one of them is."""
    for one, other in ((first, second), (second, first)):
        inner = masked(one)
        if inner is not None:
            return with_mask(inner[0], masked_sum(inner[1], other))
        if isinstance(one, _tvm.tirx.FloatImm) and float(one.value) == 0:
            return other
    return first + second


def selected(condition: TirExpr, value: TirExpr, otherwise: TirExpr) -> TirExpr:
    """Return one of two values, masked if one of them is -inf."""
    if _is_lowest(value):
        condition, value, otherwise = _tvm.simplify(_tvm.tirx.Not(condition)), otherwise, value
    return with_mask(condition, value) if _is_lowest(otherwise) else _tvm.tirx.Select(condition, value, otherwise)


def _is_lowest(value: TirExpr) -> bool:
    """Return whether an expression is the constant -inf."""
    return isinstance(value, _tvm.tirx.FloatImm) and float(value.value) == -math.inf
