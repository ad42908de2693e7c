"""How often the parts of a value stand in what it becomes.

In: a value. Out: a number for each part. Most operators have each operand once; remainders, divisions by what may be
zero, and functions that are formulas have them several times, which multiplies where they are within each other.
"""

from __future__ import annotations

from felixlike.tc.functions import TWICE, WRITTEN_OUT
from felixlike.tc.program import Binary, Call, Literal, Size, Value, children
from felixlike.tc.scalars import is_float

_FORMULA, _TWICE, _REMAINDER, _DIVISOR = 8, 2, 3, 5


def copies(value: Value) -> tuple[int, ...]:
    """For each part of a value, at most how often it is written."""
    parts = children(value)
    times = 1
    if isinstance(value, Call) and value.function in WRITTEN_OUT:
        times = _FORMULA
    elif isinstance(value, Call) and value.function in TWICE:
        times = _TWICE
    elif isinstance(value, Binary) and value.operator in ("/", "%"):
        if is_float(value.dtype):
            times = _REMAINDER if value.operator == "%" else 1
        elif not isinstance(value.right, Literal | Size):
            times = _DIVISOR
    return (times,) * len(parts)
