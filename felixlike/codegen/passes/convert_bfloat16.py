"""Replace conversions from and to bfloat16, the upper half of a float32, by arithmetic on bits.

Input: an IRModule of (scheduled) PrimFuncs. Output: the same module without these conversions. Infinities and NaN are
preserved. TVM's own conversions do not compile if a variable, as felixlike's formulas have them, depends on one.
"""

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, TirExpr
from felixlike.codegen.passes.bind_repeated_values import Names
from felixlike.codegen.passes.propagate_nan import is_number

_HALF = "bfloat16"


def write_out_halves(module: Module) -> Module:
    """Return the IRModule with every conversion from or to bfloat16 in its PrimFuncs replaced."""
    return _tvm.map_functions(module, _with_conversions)


def _with_conversions(func: Func) -> Func:
    """Replace the conversions of a function that allocates no bfloat16 buffers, which TVM would turn into float32."""
    allocated = [statement.buffer for statement in _tvm.found(func.body, _tvm.tirx.AllocBuffer)]
    blocks = _tvm.found(func.body, _tvm.s_tir.SBlock)
    allocated += [buffer for block in blocks for buffer in block.alloc_buffers]
    if any(str(buffer.dtype) == _HALF for buffer in allocated):
        return func
    return _tvm.structural_map(func, (_tvm.tirx.Cast, _converted))


def _converted(cast: TirExpr) -> TirExpr:
    """Replace one cast if it converts from or to bfloat16."""
    before, after = str(cast.value.ty.dtype), str(cast.ty.dtype)
    if before == _HALF and after != _HALF:
        return _widened(cast.value).astype(after)
    if after == _HALF and before != _HALF:
        return _rounded(cast.value.astype("float32"))
    return cast


def _widened(value: TirExpr) -> TirExpr:
    """Convert bfloat16 to float32."""
    bits = _tvm.tirx.reinterpret("uint16", value).astype("uint32") << _tvm.tirx.const(16, "uint32")
    return _tvm.tirx.reinterpret("float32", bits)


def _rounded(value: TirExpr) -> TirExpr:
    """Convert float32 to bfloat16."""
    return _tvm.tirx.reinterpret(_HALF, rounded_bits(value))


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
