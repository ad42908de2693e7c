"""Scalar types of the language and how they match.

In: types by their names in the language. Out: what an operator makes of two. Types are named as numpy and TVM do.
"""

from __future__ import annotations

_ALIASES = {"float": "float32", "double": "float64"}

SPOKEN = {"float32": "float", "float64": "double"}
"""What the language calls a type, where that is not its name."""


def canonical(name: str) -> str:
    """One name for each type: float32 for float, float64 for double."""
    return _ALIASES.get(name, name)


def spoken(dtype: str) -> str:
    """A type as programs call it."""
    return SPOKEN.get(dtype, dtype)


def bits(dtype: str) -> int:
    """Of a value; a bool is an unsigned integer of one."""
    return 1 if dtype == "bool" else int(dtype.lstrip("uintfloa"))


def is_float(dtype: str) -> bool:
    """Whether values are floating-point numbers."""
    return dtype.startswith("float")


def is_integral(dtype: str) -> bool:
    """Whether values may be subscripts and bounds."""
    return "int" in dtype


def is_unsigned(dtype: str) -> bool:
    """Whether values have no sign."""
    return dtype == "bool" or dtype.startswith("uint")


def matched(left: str, right: str) -> str:
    """The type of what an operator makes of two values.

    Equal types stay; a float beats every integer; of two floats, or two unsigned integers, the wider; of other
    integers a signed one of the wider width."""
    if left == right:
        return left
    if is_float(left) != is_float(right):
        return left if is_float(left) else right
    wider = left if bits(left) >= bits(right) else right
    if is_float(left) or (is_unsigned(left) and is_unsigned(right)):
        return wider
    return f"int{max(bits(left), bits(right))}"


def limits(dtype: str) -> tuple[int, int]:
    """Least and greatest value of an integer type."""
    width = bits(dtype)
    return (0, 2**width - 1) if is_unsigned(dtype) else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
