"""Compute sums, differences and products of integers modulo 2^bits, as PyTorch does.

    A[i] * 1000003 % 97   →   (int64(int128(A[i]) * 1000003) ^ 1 ^ 1) % 97

Input: an IRModule of scheduled PrimFuncs. Output: the same module with integer arithmetic rewritten. TVM takes integers
not to exceed their type: its simplifier turns the remainder above into that of A[i] * 50, x + 1 > x into true, and
int64(x + 1) into int64(x) + 1. So does LLVM, since TVM marks the instructions of 32 and 64 bits. Hash functions exceed
their types. So the arithmetic is done in twice the bits, which LLVM narrows to one instruction that wraps. TVM knows no
bounds of exclusive ors, so that they hide the result from it; LLVM removes them.

Expressions without loads, such as indices, remain as they are, and so does arithmetic whose operands have bounds that
keep the result within its type.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, TirExpr
from felixlike.codegen.passes.loop_tools import analyzer_of

_Function = Callable[[Any, Any], Any]

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_MARKED = 32
"""Least bits of types whose instructions TVM marks."""
_UNKNOWN = 2**63 - 1
"""TVM's bound of what has no bound."""


def wrap_integers(module: Module) -> Module:
    """Return the IRModule with integer arithmetic that wraps, for CPUs."""
    return _tvm.map_functions(module, partial(_wrapping, wide=_twice_as_wide))


def wrap_integers_on_gpus(module: Module) -> Module:
    """Return the IRModule with integer arithmetic that wraps, for GPUs."""
    return _tvm.map_functions(module, partial(_wrapping, wide=_unsigned))


def _twice_as_wide(dtype: str, function: _Function) -> str:
    """Return a type in which arithmetic of another one is exact."""
    if _BITS[dtype] < _MARKED:
        return dtype
    unsigned = "u" if dtype.startswith("u") and function is not operator.sub else ""
    return f"{unsigned}int{2 * _BITS[dtype]}"


def _unsigned(dtype: str, _: _Function) -> str:
    """Return the unsigned type, whose arithmetic wraps in CUDA, which has no types of 128 bits."""
    return dtype if _BITS[dtype] < _MARKED else f"uint{_BITS[dtype]}"


def _wrapping(func: Func, wide: Callable[[str, _Function], str]) -> Func:
    """Rewrite the arithmetic of a function. `wide` gives the type that it is done in."""
    loads = _tvm.found(func.body, _tvm.ir.TensorLoad)
    casts = _tvm.found(func.body, _tvm.tirx.Cast)
    if not any(str(value.ty.dtype) in _BITS for value in (*loads, *casts)):
        return func
    tirx, analyzer = _tvm.tirx, analyzer_of(func)

    def rewritten(node: TirExpr, function: _Function) -> TirExpr:
        dtype = str(node.ty.dtype)
        if dtype not in _BITS or not _tvm.found(node, _tvm.ir.TensorLoad) or _is_within(analyzer, node, function):
            return node
        exact = wide(dtype, function)
        return function(node.a.astype(exact), node.b.astype(exact)).astype(dtype) ^ 1 ^ 1

    changes = ((tirx.Add, operator.add), (tirx.Sub, operator.sub), (tirx.Mul, operator.mul))
    return _tvm.structural_map(func, tuple((kind, partial(rewritten, function=function)) for kind, function in changes))


def _is_within(analyzer: Any, node: TirExpr, function: _Function) -> bool:
    """Return whether the bounds of the operands keep a result within its type."""
    sides = [analyzer.const_int_bound(side) for side in (node.a, node.b)]
    bounds = [(int(side.min_value), int(side.max_value)) for side in sides]
    if any(abs(bound) >= _UNKNOWN for pair in bounds for bound in pair):
        return False
    results = [function(one, other) for one, other in itertools.product(*bounds)]
    dtype = str(node.ty.dtype)
    signed = not dtype.startswith("u")
    low, high = -signed * 2 ** (_BITS[dtype] - 1), 2 ** (_BITS[dtype] - signed)
    return bool(low <= min(results) and max(results) < high)
