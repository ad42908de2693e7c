"""Define the functions that multiply pairs of bfloat16 numbers, in LLVM's language.

    pairs_16(sums, x, y) = sums + x₀·y₀ + x₁·y₁ for each of 16 lanes; x and y are pairs as integers of 32 bits

Input: an IRModule after the passes for CPUs. Output: the same module, in which each function that calls one of these
brings its definition along. TVM imports LLVM's text by an attribute, and LLVM inlines the function. The definition is
the instruction `vdpbf16ps` if the target has it. Else it computes the same with shifts and multiply-adds in float32, so
that schedules for other processors can be tested. The instruction takes subnormal numbers for zero.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module
from felixlike.hardware.instructions import PAIRS

LANES = (4, 8, 16)
"""Lanes of the vectors for which there is a function."""

_NAME = "felixlike_pairs_"
"""Prefix of the functions' names."""

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
    """Return the name of the function for vectors of `lanes` elements."""
    return f"{_NAME}{lanes}"


def with_pair_functions(module: Module, target: Any) -> Module:
    """Return the IRModule with the definitions that its functions call. Functions without such calls are not changed.

    Args:
        module: An IRModule after `codegen/passes/multiply_pairs.py`.
        target: A TVM target of a CPU.
    """
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc)]
    if not any(map(_called, functions)):
        return module
    template = _INSTRUCTION if PAIRS in _tvm.cpu_features(target) else _PLAIN

    def with_definitions(func: Func) -> Func:
        body = func.body
        for lanes in _called(func):
            text = template.format(
                n=lanes,
                name=name_of(lanes),
                halves=2 * lanes,
                instruction=f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}",
            )
            zero, text = _tvm.tirx.const(0, "int32"), _tvm.ir.StringImm(text)
            body = _tvm.tirx.AttrStmt(zero, "pragma_import_llvm", text, body)
        return func.with_body(body)

    return _tvm.map_functions(module, with_definitions)


def _called(func: Func) -> list[int]:
    """Return the lanes of the functions that a PrimFunc calls."""
    names = {str(text.value) for text in _tvm.found(func.body, _tvm.ir.StringImm)}
    return [lanes for lanes in LANES if name_of(lanes) in names]
