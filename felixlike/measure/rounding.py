"""The coarsest type that a function rounds values to on the way, which says how exact its answer can be.

In: a PrimFunc. Out: the name of a float type.
"""

from typing import Any

from felixlike import tvmlib

_FROM_COARSE_TO_FINE = ("bfloat16", "float16", "float32", "float64")


def coarsest(func: Any) -> str:
    """Of the float types that a function converts to or stores, the one with the fewest digits; float64 if none."""
    tirx = tvmlib.tirx
    found = {str(node.ty.dtype) for node in tvmlib.found(func.body, tirx.Cast)}
    found |= {str(store.buffer.dtype) for store in tvmlib.found(func.body, tirx.BufferStore)}
    return next((dtype for dtype in _FROM_COARSE_TO_FINE if dtype in found), "float64")
