"""Division by a value that stays the same along a loop, as multiplication by its reciprocal.

In: an IRModule of (scheduled) PrimFuncs. Out: the same with such divisions of float32 rewritten.
A vector division takes as long as a dozen multiplications, and LLVM may not replace one without leave to be inexact. Of
1 / y one is left a row; half of a softmax's time went into divisions. Off by at most 1.5 ulp instead of 0.5; where
1 / y overflows, |y| < 2^-128, the answer is infinite.
"""

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Module, TirExpr


def share_reciprocals(module: Module) -> Module:
    """The IRModule with x / y as x · (1 / y) wherever x is indexed by all that y is indexed by, and by more."""
    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, (_tvm.tirx.Div, _shared)))


def _shared(division: TirExpr) -> TirExpr:
    if str(division.ty.dtype) != "float32":
        return division
    indices = _indices(division.b)
    if not indices or not indices < _indices(division.a):
        return division
    return division.a * (_tvm.tirx.const(1, "float32") / division.b)


def _indices(expression: TirExpr) -> set[Any]:
    """The variables in the indices of an expression's loads."""
    found: set[Any] = set()
    for load in _tvm.found(expression, _tvm.ir.TensorLoad):
        for index in load.indices:
            found.update(_tvm.found(index, _tvm.tirx.Var))
    return found
