"""Recognize float32 tensors whose values are bfloat16, as models in bfloat16 have them.

The importer computes such models in float32 (`importers/low_precision.py`). Products of these tensors need no rounding
where a device multiplies bfloat16 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike.frontend.rewrites.rewriting import Bindings, is_constant, operator

HALF, WIDE = "bfloat16", "float32"

_VIEWS = {"broadcast_to", "expand_dims", "permute_dims", "reshape", "squeeze"}
"""Operators that only move or repeat elements."""


def is_half(expression: Any, known: Bindings) -> bool:
    """Return whether the values of a float32 tensor are bfloat16 because the model rounds them or has them so."""
    value = known.value(expression)
    while operator(value) in _VIEWS:
        value = known.value(value.args[0])
    return operator(value) == "astype" and str(value.args[0].ty.dtype) == HALF


def is_half_constant(expression: Any) -> bool:
    """Return whether the values of a float32 constant are bfloat16."""
    if not is_constant(expression) or str(expression.ty.dtype) != WIDE:
        return False
    bits: npt.NDArray[np.uint32] = expression.value.numpy().view(np.uint32)
    return not np.any(bits & np.uint32(0xFFFF))


def has_half_factors(product: Any, known: Bindings) -> bool:
    """Return whether the values of both factors of a float32 product are bfloat16."""
    return all(is_half(factor, known) or is_half_constant(factor) for factor in product.args)
