"""Count how often the operands of a value are repeated in the generated expression.

Input: a value. Output: a count for each operand. Most operators use each operand once. Remainders, divisions whose
divisor may be zero, and functions written as formulas repeat them; nesting multiplies the counts.
"""

from __future__ import annotations

from felixlike.tc.functions import TWICE, WRITTEN_OUT
from felixlike.tc.program import Binary, Call, Literal, Size, Value, children
from felixlike.tc.scalars import is_float

_FORMULA, _TWICE, _REMAINDER, _DIVISOR = 8, 2, 3, 5
"""Copies of an operand in a formula, in functions of `TWICE`, in a float remainder, and in a division that tests for 0.
"""


def copies(value: Value) -> tuple[int, ...]:
    """Return for each operand of a value an upper bound on its number of copies."""
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
