"""Describe how GPU blocks copy an operand of a contraction into shared memory.

Input: an `Operator`. Output: two `Operand`s, one with the rows and one with the columns: the source of an element, the
order of copies and the elements per copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import TirExpr
from felixlike.dynamic.operator import Axis, Operator
from felixlike.spaces.contraction import bare
from felixlike.spaces.gpu.thread_axes import widest

_COPIED_BYTES = (4, 8, 16)
"""Sizes that one asynchronous copy of CUDA can have, in bytes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a contraction.

    Attributes:
        name: "rows" or "columns".
        value: An element, as an expression of the operator's axes.
        main: The axis of its rows or columns.
        along: Whether memory neighbours lie along `main` rather than along the reduction.
        lanes: Elements that are copied at once.
    """

    name: str
    value: TirExpr
    main: Axis
    along: bool
    lanes: int

    @property
    def dtype(self) -> str:
        """Type of an element."""
        return str(self.value.ty.dtype)

    @property
    def is_load(self) -> bool:
        """Whether an element is copied unchanged."""
        return type(self.value).__name__ == "TensorLoad"

    @property
    def asynchronous(self) -> bool:
        """Whether copies are asynchronous."""
        return self.is_load and self.lanes * _tvm.bits(self.dtype) // 8 in _COPIED_BYTES


def operands_of(operator: Operator) -> tuple[Operand, Operand]:
    """Return the operand of the rows and that of the columns."""
    product = bare(operator.product)
    factors = [bare(product.a), bare(product.b)]
    columns = next(f for f in factors if _tvm.structural_equal(f, operator.vectors))
    rows = next(f for f in factors if f is not columns)
    return _operand("rows", rows, operator.rows, operator), _operand("columns", columns, operator.along, operator)


def _operand(name: str, value: Any, main: Axis, operator: Operator) -> Operand:
    """Return an operand; expressions other than a load are copied one element at a time."""
    if type(value).__name__ != "TensorLoad":
        return Operand(name, value, main, along=False, lanes=1)
    last = value.indices[-1]
    along = bool(last.same_as(main.variable))
    axis = main if along else next((a for a in operator.reduced if last.same_as(a.variable)), None)
    whole = axis is not None and isinstance(axis.extent, int) and axis.extent == value.source.shape[-1]
    # Neighbours along the reduction go to different rows of a tile, so they are copied one at a time.
    lanes = widest(axis.extent, _tvm.bits(str(value.source.dtype))) if along and axis is not None and whole else 1
    return Operand(name, value, main, along, lanes)


def summed(operator: Operator) -> Any:
    """Return the number of reduction steps, a number or an expression."""
    return math.prod(axis.extent for axis in operator.reduced)
