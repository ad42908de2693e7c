"""Build TVM expressions for the built-in functions.

Input: the name of a function, TVM expressions of one float type. Output: an expression of that type. Most functions
are TVM's or those of the C library, which CUDA has under the same names. The rest are formulas: Giles, "Approximating
the erfinv function" (2010); Abramowitz and Stegun, 7.1.14 and 9.8.1 to 9.8.4, accurate to 2e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from felixlike import _tvm

_Expr = Any

_TVMS = (
    *("acos", "acosh", "asin", "asinh", "atan", "ceil", "cos", "cosh", "erf", "exp", "exp10", "exp2"),
    *("floor", "log", "log10", "log1p", "log2", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
    *("atan2", "copysign", "hypot", "nextafter"),
)
"""Functions that TVM has under the same names."""

_LIBRARY = ("atanh", "cbrt", "erfc", "expm1", "fmod", "j0", "j1", "lgamma", "logb", "remainder", "tgamma", "y0", "y1")
"""Functions of the C library; names for float end in f."""

_IN_LIBRARIES = (
    *("acos", "acosh", "asin", "asinh", "atan", "cos", "cosh", "erf", "exp", "exp10", "exp2", "log", "log10"),
    *("log1p", "log2", "sin", "sinh", "tan", "tanh", "atan2", "hypot", "pow", "fmax", "fmin", "fdim"),
)
"""Functions with another implementation here that the C library has, too."""

_ERFCX_FROM, _ERFCX_STEPS = 3.0, 30
"""Least x, and depth, of the continued fraction of erfcx. Chosen by hand."""


def elementary(function: str, arguments: list[_Expr], *, by_library: bool = False) -> _Expr:
    """Return a TVM expression of a built-in function.

    by_library: Call the C library wherever it has the function, instead of vectorizable arithmetic.
    """
    is_double = str(arguments[0].ty.dtype) == "float64"
    by_library = by_library or (function == "tanh" and is_double)  # TVM's tanh in double is 0 below 1e-16
    if function == "rsqrt" and by_library:
        return _reciprocal(_tvm.tirx.sqrt(*arguments))
    if function in _TVMS and not (by_library and function in _IN_LIBRARIES):
        return getattr(_tvm.tirx, function)(*arguments)
    if function in _LIBRARY or (by_library and function in _IN_LIBRARIES):
        dtype = str(arguments[0].ty.dtype)
        return _tvm.tirx.call_pure_extern(dtype, function if is_double else f"{function}f", *arguments)
    return _FORMULAS[function](*arguments)


def _const(value: float, like: _Expr) -> _Expr:
    """Return a constant of the type of `like`."""
    return _tvm.tirx.const(value, str(like.ty.dtype))


def _greater(x: _Expr, y: _Expr) -> _Expr:
    """Return the maximum like fmax of C: of a number and NaN, the number."""
    return _tvm.tirx.Select(_wins(x > y, y), x, y)


def _less(x: _Expr, y: _Expr) -> _Expr:
    """Return the minimum like fmin of C: of a number and NaN, the number."""
    return _tvm.tirx.Select(_wins(x < y, y), x, y)


def _wins(test: _Expr, other: _Expr) -> _Expr:
    """Return the test, or that `other` is NaN; literals are never NaN."""
    literal = isinstance(other, _tvm.tirx.FloatImm)
    return test if literal else _tvm.tirx.Or(test, _tvm.tirx.isnan(other))


def _difference(x: _Expr, y: _Expr) -> _Expr:
    """Return the positive difference, as fdim of C."""
    return _tvm.tirx.Select(x > y, x - y, _const(0.0, x))


def _rounded(x: _Expr) -> _Expr:
    """Return x rounded, halves away from zero as in C. The greatest number below 0.5 does not round 0.49999997 up."""
    below_half = np.nextafter(np.dtype(str(x.ty.dtype)).type(0.5), 0)
    return _tvm.tirx.trunc(x + _tvm.tirx.copysign(_const(float(below_half), x), x))


def _of_half_turns(x: _Expr, function: str) -> _Expr:
    """Return sin or cos of π x, after reducing x to -1…1."""
    turns = x - _const(2.0, x) * _tvm.tirx.round(x * _const(0.5, x))
    return getattr(_tvm.tirx, function)(turns * _const(math.pi, x))


def _norm(*parts: _Expr) -> _Expr:
    """Return the Euclidean norm."""
    total = parts[0] * parts[0]
    for part in parts[1:]:
        total = total + part * part
    return _tvm.tirx.sqrt(total)


def _reciprocal(x: _Expr) -> _Expr:
    return _const(1.0, x) / x


def _polynomial(x: _Expr, coefficients: tuple[float, ...]) -> _Expr:
    """Evaluate a polynomial; coefficients start with the highest power."""
    value = _const(coefficients[0], x)
    for coefficient in coefficients[1:]:
        value = value * x + _const(coefficient, x)
    return value


_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
"""Coefficients of Giles, highest power first, for w below 5."""
_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
"""Coefficients of Giles, highest power first, for w from 5 on."""


def _inverse_erf(x: _Expr, w: _Expr) -> _Expr:
    """Return erf⁻¹(x), where w is -log(1 - x²)."""
    near = _polynomial(w - _const(2.5, x), _NEAR)
    far = _polynomial(_tvm.tirx.sqrt(w) - _const(3.0, x), _FAR)
    result = _tvm.tirx.Select(w < _const(5.0, x), near, far) * x
    # The polynomials have float accuracy: two steps of Newton's method for double.
    steps = 2 if str(x.ty.dtype) == "float64" else 0
    for _ in range(steps):
        slope = _const(2 / math.sqrt(math.pi), x) * _tvm.tirx.exp(-result * result)
        result = result - (_tvm.tirx.erf(result) - x) / slope
    return _tvm.tirx.Select(w < _const(math.inf, x), result, x * _const(math.inf, x))


def _erfinv(x: _Expr) -> _Expr:
    one = _const(1.0, x)
    return _inverse_erf(x, -_tvm.tirx.log((one - x) * (one + x)))


def _erfcinv(y: _Expr) -> _Expr:
    return _inverse_erf(_const(1.0, y) - y, -_tvm.tirx.log(y * (_const(2.0, y) - y)))


def _erfcx(x: _Expr) -> _Expr:
    """Return exp(x²) erfc(x); for large x as a continued fraction, since exp(x²) overflows and erfc(x) underflows."""
    tail = _const(0.0, x)
    for step in range(_ERFCX_STEPS, 0, -1):
        tail = _const(step / 2, x) / (x + tail)
    fraction = _const(1 / math.sqrt(math.pi), x) / (x + tail)
    plain = _tvm.tirx.exp(x * x) * elementary("erfc", [x])
    return _tvm.tirx.Select(x > _const(_ERFCX_FROM, x), fraction, plain)


_I0_NEAR = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
"""Abramowitz and Stegun 9.8.1, in (x / 3.75)², highest power first."""
_I0_FAR = (
    0.00392377,
    -0.01647633,
    0.02635537,
    -0.02057706,
    0.00916281,
    -0.00157565,
    0.00225319,
    0.01328592,
    0.39894228,
)
"""Abramowitz and Stegun 9.8.2, in 3.75 / |x|, highest power first."""
_I1_NEAR = (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5)
"""Abramowitz and Stegun 9.8.3, in (x / 3.75)², highest power first."""
_I1_FAR = (
    -0.00420059,
    0.01787654,
    -0.02895312,
    0.02282967,
    -0.01031555,
    0.00163801,
    -0.00362018,
    -0.03988024,
    0.39894228,
)
"""Abramowitz and Stegun 9.8.4, in 3.75 / |x|, highest power first."""
_BESSEL_FROM = 3.75
"""|x| at which Abramowitz and Stegun change from one polynomial to the other."""


def _bessel(x: _Expr, near: tuple[float, ...], far: tuple[float, ...]) -> _Expr:
    """Return expressions of I₀(x) for small and for large |x|; for I₁ those of I₁(|x|) / |x| and I₁(|x|)."""
    size = _tvm.tirx.abs(x)
    ratio = x / _const(_BESSEL_FROM, x)
    inside = _polynomial(ratio * ratio, near)
    grown = _tvm.tirx.exp(size) / _tvm.tirx.sqrt(size)
    outside = grown * _polynomial(_const(_BESSEL_FROM, x) / size, far)
    return inside, outside


def _bessel_0(x: _Expr) -> _Expr:
    inside, outside = _bessel(x, _I0_NEAR, _I0_FAR)
    return _tvm.tirx.Select(_tvm.tirx.abs(x) < _const(_BESSEL_FROM, x), inside, outside)


def _bessel_1(x: _Expr) -> _Expr:
    inside, outside = _bessel(x, _I1_NEAR, _I1_FAR)
    signed = _tvm.tirx.Select(x < _const(0.0, x), -outside, outside)
    return _tvm.tirx.Select(_tvm.tirx.abs(x) < _const(_BESSEL_FROM, x), inside * x, signed)


_FORMULAS: dict[str, Callable[..., _Expr]] = {
    "cospi": lambda x: _of_half_turns(x, "cos"),
    "cyl_bessel_i0": _bessel_0,
    "cyl_bessel_i1": _bessel_1,
    "erfcinv": _erfcinv,
    "erfcx": _erfcx,
    "erfinv": _erfinv,
    "fabs": lambda x: _tvm.tirx.abs(x),
    "fdim": _difference,
    "fdivide": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
    "fmax": _greater,
    "fmin": _less,
    "norm3d": _norm,
    "norm4d": _norm,
    "normcdf": lambda x: _const(0.5, x) * elementary("erfc", [x * _const(-math.sqrt(0.5), x)]),
    "normcdfinv": lambda x: _const(-math.sqrt(2.0), x) * _erfcinv(x * _const(2.0, x)),
    "pow": lambda x, y: _tvm.tirx.power(x, y),
    "round": _rounded,
    "rcbrt": lambda x: _reciprocal(elementary("cbrt", [x])),
    "rhypot": lambda x, y: _reciprocal(_tvm.tirx.hypot(x, y)),
    "rnorm3d": lambda *parts: _reciprocal(_norm(*parts)),
    "rnorm4d": lambda *parts: _reciprocal(_norm(*parts)),
    "sinpi": lambda x: _of_half_turns(x, "sin"),
}
"""Functions composed of others."""
