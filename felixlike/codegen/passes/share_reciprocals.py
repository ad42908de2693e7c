"""Replace divisions by a value that is constant along a loop by multiplications with its reciprocal.

Input: an IRModule of (scheduled) PrimFuncs. Output: the same module with such float32 divisions rewritten. A vector
division takes as long as a dozen multiplications, and LLVM may not replace it, because the result is inexact. One 1 / y
a row remains; divisions took half of a softmax's time. The error is at most 1.5 ulp instead of 0.5. If 1 / y overflows,
|y| < 2^-128, the result is infinite. Quotients that are rounded or compared stay divisions: 60 / 0.3 is just below 200,
and x / x is 1, which 1.5 ulp would change by a whole number.
"""

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, Node, TirExpr

_COMPARISONS = ("EQ", "NE", "LT", "LE", "GT", "GE", "Mod")
"""Operators of TIR whose result jumps where an operand changes by an ulp."""
_ROUNDINGS = {f"tirx.{name}" for name in ("ceil", "floor", "nearbyint", "round", "trunc")}
"""Functions of TIR whose result jumps."""


def share_reciprocals(module: Module) -> Module:
    """Return the IRModule with x / y as x · (1 / y) if the indices of x have all variables of those of y, and more."""
    return _tvm.map_functions(module, _with_products)


def _with_products(func: Func) -> Func:
    """Rewrite the divisions of a function."""
    if not any(map(_may_be_product, _tvm.found(func.body, _tvm.tirx.Div))):
        return func
    exact = _exact(func.body)

    def rewritten(division: TirExpr) -> TirExpr:
        if not _may_be_product(division) or any(_tvm.structural_equal(division, other) for other in exact):
            return division
        return division.a * (_tvm.tirx.const(1, "float32") / division.b)

    return _tvm.structural_map(func, (_tvm.tirx.Div, rewritten))


def _may_be_product(division: TirExpr) -> bool:
    """Return whether the divisor of a float32 division is constant along a loop that the dividend depends on."""
    if str(division.ty.dtype) != "float32":
        return False
    indices = _indices(division.b)
    return bool(indices) and indices < _indices(division.a)


def _exact(body: Node) -> list[Any]:
    """Return the divisions whose quotients are rounded or compared, directly or where they are stored before."""
    tirx = _tvm.tirx
    jumps = [node for kind in _COMPARISONS for node in _tvm.found(body, getattr(tirx, kind))]
    jumps += [call for call in _tvm.found(body, _tvm.ir.Call) if getattr(call.op, "name", "") in _ROUNDINGS]
    jumps += [cast for cast in _tvm.found(body, tirx.Cast) if "float" not in str(cast.ty.dtype)]
    read = [load.source for node in jumps for load in _tvm.found(node, _tvm.ir.TensorLoad)]
    stores = [s for s in _tvm.found(body, tirx.BufferStore) if any(s.buffer.same_as(buffer) for buffer in read)]
    return [division for node in (*jumps, *stores) for division in _tvm.found(node, tirx.Div)]


def _indices(expression: TirExpr) -> set[Any]:
    """Return the variables in the indices of an expression's loads."""
    variables: set[Any] = set()
    for load in _tvm.found(expression, _tvm.ir.TensorLoad):
        for index in load.indices:
            variables.update(_tvm.found(index, _tvm.tirx.Var))
    return variables
