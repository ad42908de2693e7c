"""Scalar types of the language and how operators match them.

Types are named as in numpy and TVM.
"""

from __future__ import annotations

_ALIASES = {"float": "float32", "double": "float64"}
"""numpy names of types with another name in the language."""

SPOKEN = {"float32": "float", "float64": "double"}
"""Names of types in the language, where they differ from those of numpy."""


def canonical(name: str) -> str:
    """Return the numpy name of a type: float32 for float, float64 for double."""
    return _ALIASES.get(name, name)


def spoken(dtype: str) -> str:
    """Return the name of a type in the language."""
    return SPOKEN.get(dtype, dtype)


def bits(dtype: str) -> int:
    """Return the width of a type in bits, 1 for bool."""
    return 1 if dtype == "bool" else int(dtype.lstrip("uintfloa"))


def is_float(dtype: str) -> bool:
    """Return whether a type is a floating-point type."""
    return dtype.startswith("float")


def is_integral(dtype: str) -> bool:
    """Return whether values of a type can be subscripts and bounds."""
    return "int" in dtype


def is_unsigned(dtype: str) -> bool:
    """Return whether a type is unsigned."""
    return dtype == "bool" or dtype.startswith("uint")


def matched(left: str, right: str) -> str:
    """Return the result type of an operator on two types.

    Equal types stay. A float type wins over every integer type. Two float types, or two unsigned ones, give the wider
    one. Other integer types give a signed one of the greater width.
    """
    if left == right:
        return left
    if is_float(left) != is_float(right):
        return left if is_float(left) else right
    wider = left if bits(left) >= bits(right) else right
    if is_float(left) or (is_unsigned(left) and is_unsigned(right)):
        return wider
    return f"int{max(bits(left), bits(right))}"


def limits(dtype: str) -> tuple[int, int]:
    """Return the least and greatest value of an integer type."""
    width = bits(dtype)
    return (0, 2**width - 1) if is_unsigned(dtype) else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
