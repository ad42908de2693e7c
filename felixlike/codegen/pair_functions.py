"""Define the functions that multiply pairs of bfloat16 numbers, and that round to them, in LLVM's language.

    pairs_16(sums, x, y) = sums + x₀·y₀ + x₁·y₁ for each of 16 lanes; x and y are pairs as integers of 32 bits
    half_16(x)           = the bits of x in bfloat16
    word_16(x, y)        = those of x, and those of y in the upper half of an integer

Input: an IRModule after the passes for CPUs. Output: the same module, in which each function that calls one of these
brings its definition along. TVM imports LLVM's text by an attribute, and LLVM inlines the function. The definition is
the instruction `vdpbf16ps` if the target has it. Else it computes the same with shifts and multiply-adds in float32, so
that schedules for other processors can be tested. The instruction takes subnormal numbers for zero. Those that round
are called where the target has their instructions (`codegen/passes/round_halves.py`).
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module
from felixlike.hardware import PAIRS, has_instruction

LANES = (4, 8, 16)
"""Lanes of the vectors for which there is a function."""

_NAME = "felixlike_pairs_"
"""Prefix of the names of the functions that multiply."""

HALF, WORD = "tirx.felixlike_half", "tirx.felixlike_word"
"""Operators that are lowered to calls of the functions that round, of one vector and of two."""

_ROUNDING = """\
define linkonce_odr <{n} x i16> @{half}(<{n} x float> %x) #1 {{
  %h = fptrunc <{n} x float> %x to <{n} x bfloat>
  %r = bitcast <{n} x bfloat> %h to <{n} x i16>
  ret <{n} x i16> %r
}}
define linkonce_odr <{n} x i32> @{word}(<{n} x float> %x, <{n} x float> %y) #1 {{
  %h = call <{halves} x bfloat> @{instruction}(<{n} x float> %y, <{n} x float> %x)
  %m = shufflevector <{halves} x bfloat> %h, <{halves} x bfloat> poison, <{halves} x i32> <{order}>
  %r = bitcast <{halves} x bfloat> %m to <{n} x i32>
  ret <{n} x i32> %r
}}
declare <{halves} x bfloat> @{instruction}(<{n} x float>, <{n} x float>)
attributes #1 = {{ alwaysinline nounwind "target-features"="+avx512bf16,+avx512vl" }}
"""

_INSTRUCTION = """\
define linkonce_odr <{n} x float> @{name}(<{n} x float> %s, <{n} x i32> %x, <{n} x i32> %y) #0 {{
  %a = bitcast <{n} x i32> %x to <{halves} x bfloat>
  %b = bitcast <{n} x i32> %y to <{halves} x bfloat>
  %r = call <{n} x float> @{instruction}(<{n} x float> %s, <{halves} x bfloat> %a, <{halves} x bfloat> %b)
  ret <{n} x float> %r
}}
declare <{n} x float> @{instruction}(<{n} x float>, <{halves} x bfloat>, <{halves} x bfloat>)
attributes #0 = {{ alwaysinline nounwind "target-features"="+avx512bf16,+avx512vl" }}
"""

_PLAIN = """\
define linkonce_odr <{n} x float> @{name}(<{n} x float> %s, <{n} x i32> %x, <{n} x i32> %y) #0 {{
  %x1 = and <{n} x i32> %x, splat (i32 -65536)
  %y1 = and <{n} x i32> %y, splat (i32 -65536)
  %x0 = shl <{n} x i32> %x, splat (i32 16)
  %y0 = shl <{n} x i32> %y, splat (i32 16)
  %a1 = bitcast <{n} x i32> %x1 to <{n} x float>
  %b1 = bitcast <{n} x i32> %y1 to <{n} x float>
  %a0 = bitcast <{n} x i32> %x0 to <{n} x float>
  %b0 = bitcast <{n} x i32> %y0 to <{n} x float>
  %p1 = fmul contract <{n} x float> %a1, %b1
  %t = fadd contract <{n} x float> %s, %p1
  %p0 = fmul contract <{n} x float> %a0, %b0
  %r = fadd contract <{n} x float> %t, %p0
  ret <{n} x float> %r
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def name_of(lanes: int) -> str:
    """Return the name of the function that multiplies pairs in vectors of `lanes` elements."""
    return f"{_NAME}{lanes}"


def half_name(lanes: int) -> str:
    """Return the name of the function that rounds a vector of `lanes` elements."""
    return f"felixlike_half_{lanes}"


def word_name(lanes: int) -> str:
    """Return the name of the function that rounds two vectors of `lanes` elements to one of pairs."""
    return f"felixlike_word_{lanes}"


def with_pair_functions(module: Module, target: Any) -> Module:
    """Return the IRModule with the definitions that its functions call. Functions without such calls are not changed.

    Args:
        module: An IRModule after `codegen/passes/multiply_pairs.py`.
        target: A TVM target of a CPU.
    """
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc)]
    if not any(_called(func) or _rounds(func) for func in functions):
        return module
    template = _INSTRUCTION if has_instruction(PAIRS, target) else _PLAIN

    def with_definitions(func: Func) -> Func:
        texts = [
            template.format(
                n=lanes,
                name=name_of(lanes),
                halves=2 * lanes,
                instruction=f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}",
            )
            for lanes in _called(func)
        ]
        rounding = map(_rounding, LANES) if _rounds(func) else ()
        return func.with_body(_tvm.with_llvm_text(func.body, *texts, *rounding))

    return _tvm.map_functions(module, with_definitions)


def _called(func: Func) -> list[int]:
    """Return the lanes of the functions that a PrimFunc calls."""
    names = {str(text.value) for text in _tvm.found(func.body, _tvm.ir.StringImm)}
    return [lanes for lanes in LANES if name_of(lanes) in names]


def _rounds(func: Func) -> bool:
    """Return whether a PrimFunc calls the operators that round."""
    return _tvm.calls(func.body, HALF, WORD)


def _rounding(lanes: int) -> str:
    """Return the definitions of the functions that round vectors of `lanes` elements."""
    return _ROUNDING.format(
        n=lanes,
        half=half_name(lanes),
        word=word_name(lanes),
        halves=2 * lanes,
        instruction=f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * lanes}",
        order=", ".join(f"i32 {lane + half}" for lane in range(lanes) for half in (0, lanes)),
    )
