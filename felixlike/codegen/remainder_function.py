"""Define the function that computes remainders of float32 in vectors, in LLVM's language.

    fmod_16(x, y) = x - trunc(x / y) y, exactly, with the sign of x, for each of 16 lanes

Input: a PrimFunc with calls of the operator REMAINDER. Output: the same function, which brings the definition along.
TVM imports LLVM's text by an attribute, and LLVM inlines the function.

A choice between expressions computes both of them, so they cannot leave out steps that large quotients alone need. The
function has a branch: quotients below 2^24 in all lanes take one step,

    r = |x| - q |y|,  q = trunc(|x| / |y|),  r + |y| if r < 0

q is one too large where |x| / |y| is rounded up. r is a multiple of the unit in the last place of y and at most |y|, so
float64 has all its digits, as it has those of the product. Other lanes take STEPS steps, as `remainder` in
`codegen/passes/vector_math.py` does.
"""

from __future__ import annotations

import struct

from felixlike import _tvm
from felixlike._tvm.typing import Func

REMAINDER = "tirx.felixlike_fmod"
"""Operator of two float32 that is lowered to a call of the function."""

LANES = (2, 4, 8, 16, 32, 64)
"""Lanes of the vectors for which there is a function."""

QUOTIENT_BITS = 28
"""Bits of a step's quotient. Its product with a float32 has at most 53 bits and is exact in float64."""
STEPS = 10
"""Steps of large quotients. They cover quotients up to 2^280; the largest of two float32 is 2^277."""
ROUND_DOUBLE = 1.5 * 2.0**52
"""Added to a float64 and subtracted again, it rounds to an integer."""

_FUNCTION = """\
define linkonce_odr <{n} x float> @{name}(<{n} x float> %x, <{n} x float> %y) #0 {{
begin:
  %a = call <{n} x float> @llvm.fabs.v{n}f32(<{n} x float> %x)
  %b = call <{n} x float> @llvm.fabs.v{n}f32(<{n} x float> %y)
  %wide = fpext <{n} x float> %a to <{n} x double>
  %whole = fpext <{n} x float> %b to <{n} x double>
  %ratio = fdiv <{n} x float> %a, %b
  %small = fcmp olt <{n} x float> %ratio, splat (float {limit})
  %finite = fcmp olt <{n} x float> %b, splat (float {infinity})
  %plain = and <{n} x i1> %small, %finite
  %all = call i1 @llvm.vector.reduce.and.v{n}i1(<{n} x i1> %plain)
  br i1 %all, label %near, label %far
near:
  %quotient = call <{n} x float> @llvm.trunc.v{n}f32(<{n} x float> %ratio)
  %q = fpext <{n} x float> %quotient to <{n} x double>
  %product = fmul contract <{n} x double> %q, %whole
  %left = fsub contract <{n} x double> %wide, %product
  br label %end
far:
  %inverse = fdiv <{n} x double> splat (double {one}), %whole
  br label %step
step:
  %unit = phi double [ {first}, %far ], [ %smaller, %step ]
  %rest = phi <{n} x double> [ %wide, %far ], [ %less, %step ]
  %lane = insertelement <{n} x double> poison, double %unit, i32 0
  %units = shufflevector <{n} x double> %lane, <{n} x double> poison, <{n} x i32> zeroinitializer
  %scaled = fmul contract <{n} x double> %rest, %inverse
  %shifted = fadd contract <{n} x double> %scaled, %units
  %rounded = fsub <{n} x double> %shifted, %units
  %part = fmul contract <{n} x double> %rounded, %whole
  %less = fsub contract <{n} x double> %rest, %part
  %smaller = fmul double %unit, {factor}
  %more = fcmp oge double %smaller, {last}
  br i1 %more, label %step, label %end
end:
  %r = phi <{n} x double> [ %left, %near ], [ %less, %step ]
  %below = fcmp olt <{n} x double> %r, zeroinitializer
  %raised = fadd <{n} x double> %r, %whole
  %exact = select <{n} x i1> %below, <{n} x double> %raised, <{n} x double> %r
  %narrow = fptrunc <{n} x double> %exact to <{n} x float>
  br i1 %all, label %signs, label %limits
limits:
  %bounded = fcmp olt <{n} x float> %a, splat (float {infinity})
  %divides = fcmp ogt <{n} x float> %b, zeroinitializer
  %defined = and <{n} x i1> %bounded, %divides
  %endless = fcmp oeq <{n} x float> %b, splat (float {infinity})
  %known = select <{n} x i1> %endless, <{n} x float> %a, <{n} x float> %narrow
  %limited = select <{n} x i1> %defined, <{n} x float> %known, <{n} x float> splat (float {nan})
  br label %signs
signs:
  %size = phi <{n} x float> [ %narrow, %end ], [ %limited, %limits ]
  %result = call <{n} x float> @llvm.copysign.v{n}f32(<{n} x float> %size, <{n} x float> %x)
  ret <{n} x float> %result
}}
declare <{n} x float> @llvm.fabs.v{n}f32(<{n} x float>)
declare <{n} x float> @llvm.trunc.v{n}f32(<{n} x float>)
declare <{n} x float> @llvm.copysign.v{n}f32(<{n} x float>, <{n} x float>)
declare i1 @llvm.vector.reduce.and.v{n}i1(<{n} x i1>)
attributes #0 = {{ alwaysinline nounwind }}
"""

_LIMIT = 2.0**24
"""Quotients below it differ from a float32 by less than 1, so that one step suffices."""


def name_of(lanes: int) -> str:
    """Return the name of the function for vectors of `lanes` elements."""
    return f"felixlike_fmod_{lanes}"


def with_remainder_functions(func: Func) -> Func:
    """Return the PrimFunc with the definitions for its calls of REMAINDER. Without such calls, it is not changed."""
    if not _tvm.calls(func.body, REMAINDER):
        return func
    return func.with_body(_tvm.with_llvm_text(func.body, *map(_definition, LANES)))


def _definition(lanes: int) -> str:
    """Return the text of the function for vectors of `lanes` elements."""
    numbers = {
        "limit": _LIMIT,
        "infinity": float("inf"),
        "nan": float("nan"),
        "one": 1.0,
        "first": ROUND_DOUBLE * 2.0 ** (QUOTIENT_BITS * (STEPS - 1)),
        "last": ROUND_DOUBLE,
        "factor": 2.0**-QUOTIENT_BITS,
    }
    return _FUNCTION.format(n=lanes, name=name_of(lanes), **{name: _literal(v) for name, v in numbers.items()})


def _literal(number: float) -> str:
    """Return a number in LLVM's language: its bits as float64."""
    return f"0x{struct.pack('>d', number).hex().upper()}"
