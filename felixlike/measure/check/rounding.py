"""How exact a function's answer can be: the coarsest type that it rounds values to, and whether it magnifies errors.

In: a PrimFunc. Out: the name of a float type; a yes or no.
"""

from typing import Any

from felixlike import _tvm

_FROM_COARSE_TO_FINE = ("bfloat16", "float16", "float32", "float64")

_MAGNIFYING = {f"tirx.{name}" for name in ("sin", "cos", "tan", "exp", "exp2", "exp10", "pow", "sinh", "cosh")}
"""Functions whose value may change by much more than their argument."""


def coarsest(func: Any) -> str:
    """Of the float types that a function converts to or stores, the one with the fewest digits; float64 if none."""
    tirx = _tvm.tirx
    found = {str(node.ty.dtype) for node in _tvm.found(func.body, tirx.Cast)}
    found |= {str(store.buffer.dtype) for store in _tvm.found(func.body, tirx.BufferStore)}
    return next((dtype for dtype in _FROM_COARSE_TO_FINE if dtype in found), "float64")


def magnifies(func: Any) -> bool:
    """Whether rounding errors may become much larger on the way: sin(30 · x) has errors of thirty roundings."""
    calls = _tvm.found(func.body, _tvm.ir.Call)
    return any(str(getattr(call.op, "name", "")) in _MAGNIFYING for call in calls)
