"""Names and numbers of arguments of the built-in functions.

`elementary.py` defines what they compute.
"""

from __future__ import annotations

_UNARY = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc erfcinv erfcx"
    " erfinv exp exp10 exp2 expm1 fabs floor j0 j1 lgamma log log10 log1p log2 logb normcdf normcdfinv rcbrt round"
    " rsqrt sin sinh sinpi sqrt tan tanh tgamma trunc y0 y1"
)
_BINARY = "atan2 copysign fdim fdivide fmax fmin fmod hypot nextafter pow remainder rhypot"

ARITY: dict[str, int] = {
    **dict.fromkeys(_UNARY.split(), 1),
    **dict.fromkeys(_BINARY.split(), 2),
    **dict.fromkeys(("fma", "norm3d", "rnorm3d"), 3),
    **dict.fromkeys(("norm4d", "rnorm4d"), 4),
}
"""Number of arguments of each function."""

WRITTEN_OUT = frozenset({"cyl_bessel_i0", "cyl_bessel_i1", "erfcinv", "erfcx", "erfinv", "normcdfinv"})
"""Functions that no library has; they become formulas in which an argument occurs many times."""

TWICE = frozenset({"cospi", "fdim", "fmax", "fmin", "norm3d", "norm4d", "rnorm3d", "rnorm4d", "round", "sinpi"})
"""Functions that become formulas in which an argument occurs twice."""

INSTEAD = {
    "abs": "write fabs(x)",
    "clamp": "write min(max(x, low), high)",
    "mean": "write a reduction: O(i) +=! A(i, j) / M",
    "relu": "write fmax(x, 0)",
    "select": "write condition ? x : y",
    "sigmoid": "write 1.0 / (1.0 + exp(-x))",
    "sum": "write a reduction: O(i) +=! A(i, j)",
}
"""How to write functions that the language lacks; used in error messages."""

_CONSTANTS = {
    "false": "0 == 1",
    "inf": "1.0 / 0.0",
    "infinity": "1.0 / 0.0",
    "nan": "0.0 / 0.0",
    "pi": "3.14159265",
    "true": "0 == 0",
}
"""Names of constants that other languages have, and how to write them; the language takes such a name for an index."""


def instead_of_constant(name: str) -> str:
    """Return how to write a constant of other languages; "" for other names."""
    value = _CONSTANTS.get(name.lower())
    return f"the language has no constant `{name}`: write {value}" if value else ""
