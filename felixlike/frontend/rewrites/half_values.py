"""Recognize float32 tensors whose values are bfloat16, as models in bfloat16 have them.

The importer computes such models in float32 (`importers/low_precision.py`). Products of these tensors need no rounding
where a device multiplies bfloat16 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike.frontend.rewrites.rewriting import Bindings, is_constant, operator, shape
from felixlike.hardware.vectors import SHORTEST

HALF, WIDE = "bfloat16", "float32"

VIEWS = {"broadcast_to", "expand_dims", "permute_dims", "reshape", "squeeze"}
"""Operators that only move or repeat elements."""


def is_half(expression: Any, known: Bindings) -> bool:
    """Return whether the values of a float32 tensor are bfloat16 because the model rounds them or has them so."""
    value = known.value(expression)
    while operator(value) in VIEWS or _adds_zeros(value):
        value = known.value(value.args[0])
    return is_widening(value)


def is_widening(expression: Any) -> bool:
    """Return whether an expression converts bfloat16 to another type."""
    return operator(expression) == "astype" and str(expression.args[0].ty.dtype) == HALF


def _adds_zeros(expression: Any) -> bool:
    """Return whether an expression is a tensor with zeros around it."""
    if operator(expression) != "nn.pad":
        return False
    return expression.attrs.pad_mode == "constant" and float(expression.attrs.pad_value) == 0.0


def is_half_constant(expression: Any) -> bool:
    """Return whether the values of a float32 constant are bfloat16."""
    if not is_constant(expression) or str(expression.ty.dtype) != WIDE:
        return False
    bits: npt.NDArray[np.uint32] = expression.value.numpy().view(np.uint32)
    return not np.any(bits & np.uint32(0xFFFF))


def has_half_factors(product: Any, known: Bindings) -> bool:
    """Return whether the values of both factors of a float32 product are bfloat16."""
    return all(is_half(factor, known) or is_half_constant(factor) for factor in product.args)


def has_paired_channels(convolution: Any) -> bool:
    """Return whether schedules may multiply pairs of neighbouring input channels of a convolution.

    Where it has several groups, weights are constants, and the channels of a group fill vectors, of input and output.
    """
    groups, (outputs, inputs) = int(convolution.attrs.groups), shape(convolution.args[1])[:2]
    if groups == 1:
        return True
    plain = is_constant(convolution.args[1]) and not operator(convolution).endswith("_transpose")
    return plain and inputs % SHORTEST == 0 and outputs // groups % SHORTEST == 0


def unrounded(expression: Any, known: Bindings) -> Any:
    """Return the float32 tensor whose values one operator alone reads in bfloat16, or the expression itself.

    Operators that cannot multiply pairs gain nothing from the rounding. A model's own roundings are left.
    """
    if known.has_own_roundings:
        return expression
    narrow = known.value(expression)
    if operator(narrow) != "astype" or not known.once(expression):
        return expression
    rounded = known.value(narrow.args[0])
    if operator(rounded) != "astype" or not known.once(narrow.args[0]) or str(rounded.ty.dtype) != HALF:
        return expression
    return rounded.args[0] if str(rounded.args[0].ty.dtype) == WIDE else expression
