"""Replace elementary functions of float32 by branch-free arithmetic, which LLVM compiles to vector instructions.

Input: an IRModule of (scheduled) PrimFuncs. Output: the same module with the calls of FUNCTIONS replaced. TVM turns
each of them into one call of the C library for each vector lane. Workloads, traces and records keep the calls: the pass
runs before the compiler. float64, in which references are computed, is not changed. Exponentials in loops that are
annotated with `Softmax` take less arithmetic: their arguments are at most 0, and they may be rounded afterwards.

All functions follow the usual plan (W. J. Cody, W. Waite, Software Manual for the Elementary Functions, 1980): reduce
the argument, evaluate a polynomial, restore exponent or sign. The polynomials minimize the largest relative error over
the reduced interval (C. L. Lawson's algorithm, 1961: repeated least squares, weights multiplied by the errors). They
were fitted in double precision and rounded to single. Fused multiply-adds are allowed, but not needed. NaN gives NaN
everywhere. The stated largest errors are those that the tests found.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, TirExpr
from felixlike.codegen.annotations import Softmax
from felixlike.codegen.passes.bind_repeated_values import Names
from felixlike.codegen.passes.loop_tools import without_mark
from felixlike.codegen.remainder_function import (
    LANES,
    QUOTIENT_BITS,
    REMAINDER,
    ROUND_DOUBLE,
    STEPS,
    name_of,
    with_remainder_functions,
)
from felixlike.hardware import BFLOAT16, PRECISIONS

_MANTISSA = 23
"""Bits of a float32's mantissa."""
_SMALLEST_NORMAL = 2.0**-126
"""The smallest normal float32."""
_ROOT_HALF = 0x3F3504F3
"""The bits of √½."""
_INFINITY = 0x7F800000
"""The bits of infinity."""
_ROUND = 1.5 * 2.0**23
"""Added to |y| < 2^22, it leaves round(y) in the sum's lowest bits (and as a float after subtracting it again)."""

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts. The first has 9 bits, so that its product with an exponent is exact (Cody and Waite)."""

_EXP_MIN, _EXP_MAX = -126 * math.log(2), 88.72283
"""Limits of x between which e^x is a normal float32."""

_EXP = (1.3901287e-3, 8.3631445e-3, 4.1666854e-2, 1.6666578e-1, 0.5)
"""Coefficients of q in `_normal_exp`."""
_TANH = (-5.6669773e-3, 2.0606177e-2, -5.3730007e-2, 1.3331331e-1, -3.3333278e-1)
"""Coefficients of p in `tanh`."""
_ERF = (-6.1807653e-4, 5.0282455e-3, -2.6789077e-2, 1.1282397e-1, -3.7612545e-1, 1.2837915e-1)
"""Coefficients of p in `erf`."""
_ERFC_ROOT = (1.3260599e-4, -2.2941181e-3, 1.2199913e-2, -9.8135360e-3, -6.3265786e-2, -0.14393118, 1.0005523)
"""Coefficients of q in `erf`."""
_LOG = (-7.9742104e-2, 1.2655695e-1, -1.2989278e-1, 1.4209945e-1, -1.6641581e-1, 2.0001201e-1, -2.5000304e-1, 1 / 3)
"""Coefficients of q in `log` and `log2`."""
_REST_OF_LOG2_E = math.log2(math.e) - 1
"""log2 e = 1 + 0.4427. A product with 1 is exact."""

_SIN = (2.6057805e-6, -1.9809602e-4, 8.3330665e-3, -1.666666e-1)
"""Coefficients for sin r, r from -π/2 to π/2."""
_ATAN = (2.9206891e-3, -1.6367916e-2, 4.3211844e-2, -7.5522125e-2, 0.10666004, -0.14211056, 0.19993773, -0.33333153)
"""Coefficients of p in `atan`."""
_HYPERBOLIC_MAX = 100.0
"""Limit of |x| for sinh and cosh: both are infinite from 89.5 on."""
_SINH = (2.0372195e-4, 8.3302837e-3, 1.6666716e-1)
"""Coefficients of p in `sinh`."""
_LOG2 = (0.3407286601563151, 0.41167278330730506, 0.5770835842473921, 0.961796673341859, 2.885390081790099)
"""Coefficients of p in `_wide_log2`."""
_EXP2 = (1.5353362e-4, 1.3398875e-3, 9.6184369e-3, 5.5503324e-2, 2.4022648e-1, 6.9314718e-1)
"""Coefficients of the polynomial in `_exp2`."""
_EXP2_ROUNDED = (9.5701022e-3, 5.5917859e-2, 2.4024744e-1, 6.9312179e-1, 9.9999928e-1)
"""Coefficients of the polynomial in `_rounded_exp`."""

_PI = (3.141592651605606, 1.9841871479187034e-09, 1.1442377452219664e-17)
"""π in three parts. The first two have 27 bits, so that their products with numbers of 26 bits are exact."""
_PI_HIGH, _PI_LOW = 3.1415927410125732, -8.742277657347586e-08
"""π in two parts, the first of which is a float32."""
_ROOT = 0.5
"""The exponent of a square root."""
_MOST_FACTORS = 16
"""Upper limit on the absolute exponent of a power that is replaced by products."""


def vectorise_math(module: Module) -> Module:
    """Return the IRModule with FUNCTIONS, remainders and small integer powers of float32 replaced by arithmetic."""
    _register()
    rules = (_tvm.ir.Call, _as_arithmetic), (_tvm.tirx.Mod, _as_exact_remainder)

    def changed(func: Func) -> Func:
        func = _tvm.structural_map(func, (_tvm.tirx.For, _in_softmax))
        return with_remainder_functions(_tvm.structural_map(func, rules))

    return _tvm.map_functions(module, changed)


def _in_softmax(loop: Loop) -> Loop:
    """Replace the exponentials in a loop that is annotated with `Softmax`. Other loops are not changed."""
    if not Softmax.on(loop):
        return loop
    rounds = Softmax.of(loop).precision == PRECISIONS.index(BFLOAT16)
    function = _rounded_exp if rounds else _exp_up_to_1

    def replaced(call: TirExpr) -> TirExpr:
        return _applied(function, call) if getattr(call.op, "name", "") == "tirx.exp" else call

    return without_mark(_tvm.structural_map(loop, (_tvm.ir.Call, replaced)), Softmax)


def _as_arithmetic(call: TirExpr) -> TirExpr:
    """Replace one call."""
    name = getattr(call.op, "name", "")
    function = (_known_power(call) if name == "tirx.pow" else None) or FUNCTIONS.get(name)
    return call if function is None else _applied(function, call)


def _applied(function: Callable[..., Any], call: TirExpr) -> TirExpr:
    """Return a function of a call's arguments, or the call if these are not float32."""
    if str(call.args[0].ty.dtype) != "float32":
        return call
    let = Names()
    return let.close(function(*map(let, call.args), let))


def _as_exact_remainder(node: TirExpr) -> TirExpr:
    """Replace one remainder of float32."""
    if str(node.ty.dtype) != "float32":
        return node
    return _tvm.tirx.call_intrin("float32", REMAINDER, node.a, node.b)


@functools.cache
def _register() -> None:
    """Make the operator of remainders known to TVM."""
    _tvm.register_vectorizable(REMAINDER, _lowered_remainder)


def _lowered_remainder(call: TirExpr) -> TirExpr:
    """Return the call of the function for as many lanes as a remainder has; for a scalar, arithmetic.

    LLVM vectorizes the arithmetic, and calls the C library for other lanes.
    """
    lanes = _tvm.lanes(call.ty.dtype)
    if lanes == 1:
        let = Names()
        x, y = map(let, call.args)
        return let.close(remainder(x, y, let))
    if lanes in LANES:
        return _tvm.tirx.call_pure_extern(str(call.ty.dtype), name_of(lanes), *call.args)
    return _tvm.tirx.truncmod(*call.args)


def _known_power(call: TirExpr) -> Callable[..., Any] | None:
    """Return the function that replaces a small integer power or a square root, as in PyTorch, or None for others."""
    exponent = float(call.args[1].value) if isinstance(call.args[1], _tvm.tirx.FloatImm) else 0.0
    if abs(exponent) == _ROOT:
        return lambda x, _, let: root(x, let) if exponent > 0 else reciprocal_root(x, let)
    known = exponent.is_integer() and 1 <= abs(exponent) <= _MOST_FACTORS
    return (lambda x, _, let: whole_power(x, int(exponent), let)) if known else None


def exp(x: TirExpr, let: Names) -> TirExpr:
    """Return e^x, at most 1.1 ulp off. Overflow gives inf. Results below 2^-126 are flushed to 0."""
    # Comparisons with NaN are false, so NaN takes the last branch, as overflow does.
    finite = _select(x < _f(_EXP_MIN), _f(0), _normal_exp(x, let))
    return _select(x <= _f(_EXP_MAX), finite, x * _f(math.inf))


def _normal_exp(x: TirExpr, let: Names) -> TirExpr:
    """Return e^x = 2^n e^r, n = round(x / ln 2), if it is a normal number. Other results are unspecified.

    e^r = 1 + r + r² q(r), as in Cephes' expf.c (S. L. Moshier).
    """
    shifted = let(x * _f(1 / math.log(2)) + _f(_ROUND))
    n = let(shifted - _f(_ROUND))
    r = let(x - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW))
    return _scaled(_polynomial(r, _EXP) * (r * r) + r + _f(1), shifted)


def _scaled(value: TirExpr, shifted: TirExpr) -> TirExpr:
    """Return value 2^n, given n + _ROUND. n is added to the exponent's bits."""
    return _float(_bits(value) + (_bits(shifted) << _i(_MANTISSA)))


def _exp_up_to_1(x: TirExpr, let: Names) -> TirExpr:
    """Return e^x of x <= 0, at most 1.1 ulp off. Results below 2^-126 are flushed to 0."""
    return _unless_tiny(_normal_exp(x, let), x)


def _rounded_exp(x: TirExpr, let: Names) -> TirExpr:
    """Return e^x = 2^n 2^r of x <= 0 for results that are rounded to bfloat16, at most 1e-5 of it off.

    Results below 2^-126 are flushed to 0.
    """
    shifted = let(x * _f(1 / math.log(2)) + _f(_ROUND))
    r = let(x * _f(1 / math.log(2)) - let(shifted - _f(_ROUND)))
    return _unless_tiny(_scaled(_polynomial(r, _EXP2_ROUNDED), shifted), x)


def _unless_tiny(power: TirExpr, x: TirExpr) -> TirExpr:
    """Return e^x, which is given where it is a normal number, of x <= 0 or NaN."""
    # Comparisons with NaN are false, so NaN takes the last branch.
    return _select(x >= _f(_EXP_MIN), power, _select(x < _f(0), _f(0), x))


def sigmoid(x: TirExpr, let: Names) -> TirExpr:
    """Return 1 / (1 + e^-x), at most 2.5 ulp off."""
    return _f(1) / (exp(let(-x), let) + _f(1))


def tanh(x: TirExpr, let: Names) -> TirExpr:
    """Return tanh x, at most 1.3 ulp off: x + x³ p(x²) up to 0.625, then 1 - 2 / (e^2|x| + 1), as in Cephes'
    tanhf.c.
    """
    square = let(x * x)
    small = _polynomial(square, _TANH) * square * x + x
    size = let(_at_most(_abs(x), 9.1))  # from 9.02 on, the result rounds to 1
    large = _f(1) - _f(2) / (_normal_exp(let(size + size), let) + _f(1))
    return _select(size >= _f(0.625), _with_sign(large, x), small)


def erf(x: TirExpr, let: Names) -> TirExpr:
    """Return erf x: x + x p(x²) up to 0.875, then 1 - q(|x|)^8, at most 3 ulp off."""
    square = let(x * x)
    small = _polynomial(square, _ERF) * x + x
    size = let(_at_most(_abs(x), 3.95))  # from 3.92 on, the result rounds to 1
    large = _f(1) - whole_power(let(_polynomial(size, _ERFC_ROOT)), 8, let)
    return _select(size >= _f(0.875), _with_sign(large, x), small)


def log(x: TirExpr, let: Names) -> TirExpr:
    """Return log(2^k (1 + f)) = k ln 2 + f - f²/2 + f³ q(f), 1 + f in [√½, √2), at most 1 ulp off, for subnormal x too.

    The result is -inf at 0 and NaN below it. The form is that of Cephes' logf.c (S. L. Moshier).
    """
    k, f = _exponent_and_rest(x, let)
    square = let(f * f)
    rest = _polynomial(f, _LOG) * (f * square) + k * _f(_LN2_LOW) - square * _f(0.5)
    return _logarithm(rest + f + k * _f(_LN2_HIGH), x)


def log2(x: TirExpr, let: Names) -> TirExpr:
    """Return log2(2^k (1 + f)) = k + (f - f²/2 + f³ q(f)) log2 e, at most 1.8 ulp off, and exact for powers of 2.

    Limits are those of `log`. The form is that of Cephes' log2f.c (S. L. Moshier).
    """
    k, f = _exponent_and_rest(x, let)
    square = let(f * f)
    rest = let(_polynomial(f, _LOG) * (f * square) - square * _f(0.5))
    value = rest * _f(_REST_OF_LOG2_E) + f * _f(_REST_OF_LOG2_E) + rest + f + k
    return _logarithm(value, x)


def _exponent_and_rest(x: TirExpr, let: Names) -> tuple[Any, Any]:
    """Return k and f of a number 2^k (1 + f), 1 + f in [√½, √2). k is split off as in FreeBSD's e_logf.c."""
    tiny = x < _f(_SMALLEST_NORMAL)
    from_root = let(_bits(let(_select(tiny, x * _f(2.0**_MANTISSA), x))) - _i(_ROOT_HALF))
    f = let(_float((from_root & _i(2**_MANTISSA - 1)) + _i(_ROOT_HALF)) - _f(1))
    k = let((from_root >> _i(_MANTISSA)).astype("float32") - _select(tiny, _f(_MANTISSA), _f(0)))
    return k, f


def _logarithm(value: TirExpr, x: TirExpr) -> TirExpr:
    """Return a logarithm of x, whose value is given for positive finite x."""
    at_ends = _select(x == _f(0), _f(-math.inf), _f(math.nan))
    return _select(x > _f(0), _select(x < _f(math.inf), value, x), at_ends)


def whole_power(x: TirExpr, exponent: int, let: Names) -> TirExpr:
    """Return x^n for an integer n other than 0, by repeated squaring, about n / 2 ulp off."""
    result, square, remaining = None, x, abs(exponent)
    while True:
        if remaining & 1:
            result = square if result is None else let(result * square)
        remaining >>= 1
        if not remaining:
            return _f(1) / result if exponent < 0 else result
        square = let(square * square)


def power(x: TirExpr, y: TirExpr, let: Names) -> TirExpr:
    """Return |x|^y = 2^(y log2 |x|), with the exponent in float64, at most 1 ulp off.

    Signs, limits and NaN are those of C's pow. Results below 2^-126 are flushed to 0.
    """
    size = let(_abs(x))
    fixed = _any(size == _f(1), y == _f(0))
    exponent = let(_select(fixed, _d(0), y.astype("float64") * _wide_log2(size, let)))
    value = let(_exp2(exponent, let))
    whole = _floor(y) == y
    half = let(y * _f(0.5))
    otherwise = _select(_any(whole, size == _f(0), size == _f(math.inf)), value, _f(math.nan))
    negative = _select(_all(whole, _floor(half) != half), -value, otherwise)
    return _select(_bits(x) < _i(0), negative, value)


def _wide_log2(size: Any, let: Names) -> TirExpr:
    """Return log2 of a float32 that is not negative, in float64 with 12 correct digits.

    log2(2^k m) = k + s p(s²), s = (m - 1) / (m + 1), m in [√½, √2).
    """
    tiny = size < _f(_SMALLEST_NORMAL)
    from_root = let(_bits(let(_select(tiny, size * _f(2.0**_MANTISSA), size))) - _i(_ROOT_HALF))
    m = let(_float((from_root & _i(2**_MANTISSA - 1)) + _i(_ROOT_HALF)).astype("float64"))
    k = (from_root >> _i(_MANTISSA)).astype("float64") - _select(tiny, _d(_MANTISSA), _d(0))
    s = let((m - _d(1)) / (m + _d(1)))
    finite = _polynomial(let(s * s), _LOG2, _d) * s + k
    return _select(size == _f(0), _d(-math.inf), _select(size < _f(math.inf), finite, size.astype("float64")))


def _exp2(y: TirExpr, let: Names) -> TirExpr:
    """Return 2^y in float32 of a float64."""
    shifted = let(y + _d(ROUND_DOUBLE))
    r = let((y - (shifted - _d(ROUND_DOUBLE))).astype("float32"))
    power = _polynomial(r, _EXP2) * r + _f(1)
    normal = _float(_bits(power) + (_low_bits(shifted) << _i(_MANTISSA)))
    # Comparisons with NaN are false, so NaN takes the last branch, as overflow does.
    return _select(y < _d(-126), _f(0), _select(y < _d(128), normal, (y * _d(math.inf)).astype("float32")))


def reciprocal_root(x: TirExpr, let: Names) -> TirExpr:
    """Return 1 / √x, at most 1.5 ulp off."""
    return _f(1) / root(x, let)


def root(x: TirExpr, _: Names) -> TirExpr:
    """Return √x, correctly rounded."""
    return _tvm.tirx.sqrt(x)


def nearest(x: TirExpr, _: Names) -> TirExpr:
    """Round to the nearest integer, ties to even. TVM's `round` does this on CPUs and is vectorized."""
    return _tvm.tirx.round(x)


def sin(x: TirExpr, let: Names) -> TirExpr:
    """Return sin x, at most 2 ulp off for |x| < 2^25.

    Beyond that, where float32 has no fractions of a turn, digits are lost.
    """
    r, odd = _in_half_turn(x, 0.0, let)
    return _float(_bits(_near_sin(let(r.astype("float32")), let)) ^ odd)


def cos(x: TirExpr, let: Names) -> TirExpr:
    """Return cos x, at most 2 ulp off for |x| < 2^25, as sin: cos((n + ½) π + r) = ∓sin r."""
    r, odd = _in_half_turn(x, 0.5, let)
    return _float(_bits(_near_sin(let(r.astype("float32")), let)) ^ odd ^ _i(-(2**31)))


def tan(x: TirExpr, let: Names) -> TirExpr:
    """Return tan x = sin r / sin(π/2 - |r|), at most 3.5 ulp off for |x| < 2^25, as sin."""
    r, _ = _in_half_turn(x, 0.0, let)
    rest = let((_d(math.pi / 2) - _abs(r)).astype("float32"))
    return _near_sin(let(r.astype("float32")), let) / _near_sin(rest, let)


def _in_half_turn(x: TirExpr, shift: float, let: Names) -> tuple[Any, Any]:
    """Return r in float64, from -π/2 to π/2, of x = (n + shift) π + r, and n's lowest bit in the sign's place."""
    wide = let(x.astype("float64"))
    shifted = let(wide * _d(1 / math.pi) - _d(shift) + _d(ROUND_DOUBLE))
    turns = let(shifted - _d(ROUND_DOUBLE) + _d(shift))
    high, middle, low = map(_d, _PI)
    r = let(wide - turns * high - turns * middle - turns * low)
    # Beyond 2^25, the difference may be anything. NaN stays.
    bounded = _select(r > _d(math.pi / 2), _d(math.pi / 2), _select(r < _d(-math.pi / 2), _d(-math.pi / 2), r))
    return let(bounded), _low_bits(shifted) << _i(31)


def _near_sin(r: TirExpr, let: Names) -> TirExpr:
    """Return sin r = r + r³ p(r²) up to π/2."""
    square = let(r * r)
    return _polynomial(square, _SIN) * square * r + r


def atan(x: TirExpr, let: Names) -> TirExpr:
    """Return atan x: x + x³ p(x²) up to 1, beyond it π/2 - atan(1 / x), at most 2 ulp off."""
    size = let(_abs(x))
    far = size > _f(1)  # TVM cannot name a vector of conditions
    near = let(_select(far, _f(1) / size, size))
    square = let(near * near)
    angle = let(_polynomial(square, _ATAN) * square * near + near)
    return _with_sign(_select(far, _f(math.pi / 2) - angle, angle), x)


def atan2(y: TirExpr, x: TirExpr, let: Names) -> TirExpr:
    """Return the angle of (x, y): atan of the smaller by the larger size, reflected, at most 3 ulp off.

    Signs, limits and NaN are those of C's atan2.
    """
    high, wide = let(_abs(y)), let(_abs(x))
    steep = high > wide
    small, large = let(_select(steep, wide, high)), let(_select(steep, high, wide))
    equal = _select(large == _f(0), _f(0), _f(1))  # 0 / 0 and inf / inf would be NaN
    angle = let(atan(let(_select(small == large, equal, small / large)), let))
    half = let(_select(steep, _f(_PI_HIGH / 2) - angle + _f(_PI_LOW / 2), angle))
    turned = _select(_bits(x) < _i(0), _f(_PI_HIGH) - half + _f(_PI_LOW), half)
    return _with_sign(turned, y)


def remainder(x: TirExpr, y: TirExpr, let: Names) -> TirExpr:
    """Return x - trunc(x / y) y exactly, with the sign of x, as C's fmod.

    Each step in float64 subtracts the nearest multiple of 2^(28 i) |y|, i from 9 to 0, which leaves at most half of it.
    In vectors, `codegen/remainder_function.py` computes the same.
    """
    size, divisor = let(_abs(x)), let(_abs(y))
    rest, whole = let(size.astype("float64")), let(divisor.astype("float64"))
    inverse = let(_d(1) / whole)
    for step in reversed(range(STEPS)):
        to_unit = _d(ROUND_DOUBLE * 2.0 ** (QUOTIENT_BITS * step))
        rest = let(rest - let(let(rest * inverse + to_unit) - to_unit) * whole)
    exact = _select(rest < _d(0), rest + whole, rest).astype("float32")
    defined = _all(size < _f(math.inf), divisor > _f(0))
    finite = _select(divisor < _f(math.inf), exact, _select(divisor == _f(math.inf), size, _f(math.nan)))
    return _with_sign(_select(defined, finite, _f(math.nan)), x)


def is_nan(x: TirExpr, _: Names) -> TirExpr:
    """Return whether x is NaN, by its bits. TVM does not vectorize the call."""
    return (_bits(x) & _i(2**31 - 1)) > _i(_INFINITY)


def sinh(x: TirExpr, let: Names) -> TirExpr:
    """Return sinh x: x + x³ p(x²) up to 1, then (e^|x| - e^-|x|) / 2, at most 4 ulp off."""
    square = let(x * x)
    small = _polynomial(square, _SINH) * square * x + x
    half, inverse = _half_exp(x, let)
    return _select(_abs(x) >= _f(1), _with_sign(half - inverse, x), small)


def cosh(x: TirExpr, let: Names) -> TirExpr:
    """Return cosh x = (e^|x| + e^-|x|) / 2, at most 4 ulp off."""
    half, inverse = _half_exp(x, let)
    return _select(_abs(x) < _f(_HYPERBOLIC_MAX), half + inverse, _abs(x) * _f(math.inf))


def _half_exp(x: TirExpr, let: Names) -> tuple[Any, Any]:
    """Return e^|x| / 2 and e^-|x| / 2. The first is inf only where it overflows itself, not already where e^|x|
    does.
    """
    root_of = let(_normal_exp(let(_at_most(_abs(x), _HYPERBOLIC_MAX) * _f(0.5)), let))
    half = let(_f(0.5) * root_of * root_of)
    return half, _f(0.25) / half


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "tirx.exp": exp,
    "tirx.sigmoid": sigmoid,
    "tirx.tanh": tanh,
    "tirx.erf": erf,
    "tirx.log": log,
    "prim.log2": log2,
    "tirx.pow": power,
    "tirx.rsqrt": reciprocal_root,
    "tirx.nearbyint": nearest,
    "tirx.sin": sin,
    "tirx.cos": cos,
    "tirx.tan": tan,
    "tirx.atan": atan,
    "tirx.atan2": atan2,
    "tirx.isnan": is_nan,
    "tirx.sinh": sinh,
    "tirx.cosh": cosh,
}
"""Operators of TIR that are replaced: (variable of each argument, names) → expression."""


def _polynomial(x: TirExpr, coefficients: Sequence[float], constant: Callable[[float], Any] | None = None) -> TirExpr:
    """Evaluate a polynomial by Horner's rule, with the highest power's coefficient first.

    `constant` creates a constant of x's type, float32 by default.
    """
    constant = constant or _f
    value = constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + constant(coefficient)
    return value


def _f(value: float) -> TirExpr:
    """Return a float32 constant."""
    return _tvm.tirx.const(value, "float32")


def _d(value: float) -> TirExpr:
    """Return a float64 constant."""
    return _tvm.tirx.const(value, "float64")


def _i(value: int) -> TirExpr:
    """Return an int32 constant."""
    return _tvm.tirx.const(value, "int32")


def _bits(value: TirExpr) -> TirExpr:
    """Return the bits of a float32 as int32."""
    return _tvm.tirx.reinterpret("int32", value)


def _float(bits: TirExpr) -> TirExpr:
    """Return the float32 with these bits."""
    return _tvm.tirx.reinterpret("float32", bits)


def _low_bits(value: TirExpr) -> TirExpr:
    """Return the lower half of a float64's bits, which is an integer if ROUND_DOUBLE was added."""
    return _tvm.tirx.reinterpret("int64", value).astype("int32")


def _floor(value: TirExpr) -> TirExpr:
    """Return the largest integer that is at most a value."""
    return _tvm.tirx.floor(value)


def _any(*conditions: Any) -> TirExpr:
    """Return the disjunction of conditions."""
    return _tvm.tirx.any(*conditions)


def _all(*conditions: Any) -> TirExpr:
    """Return the conjunction of conditions."""
    return _tvm.tirx.all(*conditions)


def _abs(value: TirExpr) -> TirExpr:
    """Return the absolute value."""
    return _tvm.tirx.abs(value)


def _at_most(value: TirExpr, limit: float) -> TirExpr:
    """Return the minimum of a value and a limit. NaN stays."""
    return _select(value > _f(limit), _f(limit), value)


def _with_sign(size: Any, of: TirExpr) -> TirExpr:
    """Return `size`, which is not negative, with the sign of `of`."""
    return _float(_bits(size) | (_bits(of) & _i(-(2**31))))


def _select(condition: TirExpr, yes: TirExpr, no: TirExpr) -> TirExpr:
    """Return `yes` if the condition holds, else `no`, without a branch."""
    return _tvm.tirx.Select(condition, yes, no)
