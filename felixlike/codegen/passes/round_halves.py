"""Round to bfloat16: by arithmetic on bits, or by the processor's instructions.

    half(x)     the bits of x, rounded                      of a vector: vcvtneps2bf16
    word(x, y)  those of x, and those of y above them       of two vectors: vcvtne2ps2bf16, and a shuffle

`multiply_pairs.py` and `convert_bfloat16.py` make calls of these operators. TVM's vectorizer turns them into operators
of vectors, and its lowering of operators then calls the functions in `codegen/pair_functions.py`. In scalars, and on
processors without the instructions, they are arithmetic on bits.

The instructions take subnormal numbers for zero, as the one that multiplies these pairs does.
"""

from __future__ import annotations

import functools

from felixlike import _tvm
from felixlike._tvm.typing import Module, TirExpr
from felixlike.codegen.pair_functions import HALF, LANES, WORD, half_name, word_name
from felixlike.codegen.passes.bind_repeated_values import Names
from felixlike.codegen.passes.propagate_nan import is_number
from felixlike.hardware import PAIRS, has_instruction

_BITS = {HALF: "uint16", WORD: "int32"}
"""The type of each operator."""


def half(x: TirExpr) -> TirExpr:
    """Return the bits of a float32 number that is rounded to bfloat16."""
    _register()
    return _tvm.tirx.call_intrin(_BITS[HALF], HALF, x)


def word(x: TirExpr, y: TirExpr) -> TirExpr:
    """Return the bits of two float32 numbers that are rounded to bfloat16, those of the first in the lower half."""
    _register()
    return _tvm.tirx.call_intrin(_BITS[WORD], WORD, x, y)


def operand(bits: TirExpr) -> TirExpr | None:
    """Return the number whose rounded bits an expression is, or None if it is no call of `half`."""
    return bits.args[0] if str(getattr(getattr(bits, "op", None), "name", "")) == HALF else None


def only_with_instructions(module: Module, target: object) -> Module:
    """Return the IRModule with arithmetic in place of the operators, unless a target has their instructions."""
    if has_instruction(PAIRS, target):
        return module

    def replaced(call: TirExpr) -> TirExpr:
        return _arithmetic(call) if str(getattr(call.op, "name", "")) in _BITS else call

    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, (_tvm.ir.Call, replaced)))


@functools.cache
def _register() -> None:
    """Make the operators known to TVM."""
    for name in _BITS:
        _tvm.register_vectorizable(name, _lowered)


def _lowered(call: TirExpr) -> TirExpr:
    """Return the call of the function for as many lanes as a call of an operator has, or the arithmetic."""
    kind, _, lanes = str(call.ty.dtype).partition("x")
    if int(lanes or 1) not in LANES:
        return _arithmetic(call)
    name = (half_name if len(call.args) == 1 else word_name)(int(lanes))
    return _tvm.tirx.call_pure_extern(f"{kind}x{lanes}", name, *call.args)


def _arithmetic(call: TirExpr) -> TirExpr:
    """Return the expression that computes what a call of an operator does, subnormal numbers included."""
    bits = [rounded_bits(x) for x in call.args]
    if len(bits) == 1:
        return bits[0]
    wide = str(call.ty.dtype).replace("int", "uint")
    lower, upper = (each.astype(wide) for each in bits)
    return _tvm.tirx.reinterpret(str(call.ty.dtype), lower | (upper << _tvm.tirx.const(16, wide)))


def rounded_bits(value: TirExpr) -> TirExpr:
    """Return the bits of float32 numbers, one or a vector, in bfloat16: round to nearest, ties to even.

    Half a unit of the result is added, less the lowest bit if the result's last bit is 0.
    """
    names, vector = Names(), str(value.ty.dtype).removeprefix("float32")

    def const(bits: int) -> TirExpr:
        return _tvm.tirx.const(bits, f"uint32{vector}")

    x = names(value)
    bits = names(_tvm.tirx.reinterpret(f"uint32{vector}", x))
    upper = names(bits >> const(16))
    nearest = (bits + const(0x7FFF) + (upper & const(1))) >> const(16)
    upper_half = _tvm.tirx.Select(is_number(x), nearest, upper | const(0x40))
    return names.close(upper_half.astype(f"uint16{vector}"))
