"""Analyse the rounding errors of a function: the coarsest type that it rounds to, and whether it magnifies errors.

The input is a PrimFunc. The output is the name of a float type, and a boolean.
"""

from typing import Any

from felixlike import _tvm

_FROM_COARSE_TO_FINE = ("bfloat16", "float16", "float32", "float64")

_MAGNIFYING = {f"tirx.{name}" for name in ("sin", "cos", "tan", "exp", "exp2", "exp10", "pow", "sinh", "cosh")}
"""Functions whose value may change by much more than their argument; chosen by hand."""


def coarsest(func: Any) -> str:
    """Return the float type with the fewest digits that a function converts to or stores; float64 if there is none."""
    tirx = _tvm.tirx
    dtypes = {str(node.ty.dtype) for node in _tvm.found(func.body, tirx.Cast)}
    dtypes |= {str(store.buffer.dtype) for store in _tvm.found(func.body, tirx.BufferStore)}
    return next((dtype for dtype in _FROM_COARSE_TO_FINE if dtype in dtypes), "float64")


def magnifies(func: Any) -> bool:
    """Return whether the function may magnify rounding errors; sin(30 · x) magnifies them 30 times."""
    return _tvm.calls(func.body, *_MAGNIFYING)
