"""Conversions from and to bfloat16, the upper half of a float32, as arithmetic on bits.

In: an IRModule of (scheduled) PrimFuncs. Out: the same with these conversions written out; what is not finite stays so.
TVM's own conversions do not compile where a value with a name, as our formulas have them, depends on one of them.
"""

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, TirExpr
from felixlike.codegen.passes.bind_repeated_values import Names
from felixlike.codegen.passes.propagate_nan import is_number

_HALF = "bfloat16"


def write_out_halves(module: Module) -> Module:
    """The IRModule with every conversion from or to bfloat16 in its PrimFuncs written out."""
    return _tvm.map_functions(module, _with_conversions)


def _with_conversions(func: Func) -> Func:
    """A function whose own buffers are of other types: of those of bfloat16, TVM makes float32."""
    stores = _tvm.found(func.body, _tvm.tirx.BufferStore)
    halves = [store.buffer for store in stores if str(store.buffer.dtype) == _HALF]
    if any(not any(half.same_as(parameter) for parameter in func.params) for half in halves):
        return func
    return _tvm.structural_map(func, (_tvm.tirx.Cast, _converted))


def _converted(cast: TirExpr) -> TirExpr:
    before, after = str(cast.value.ty.dtype), str(cast.ty.dtype)
    if before == _HALF and after != _HALF:
        return _widened(cast.value).astype(after)
    if after == _HALF and before != _HALF:
        return _rounded(cast.value.astype("float32"))
    return cast


def _widened(value: TirExpr) -> TirExpr:
    bits = _tvm.tirx.reinterpret("uint16", value).astype("uint32") << _tvm.tirx.const(16, "uint32")
    return _tvm.tirx.reinterpret("float32", bits)


def _rounded(value: TirExpr) -> TirExpr:
    """To the nearest, of two the even one: half a unit of what is left is added, less the least bit where that is 0."""
    names = Names()
    x = names(value)
    bits = names(_tvm.tirx.reinterpret("uint32", x))
    upper = names(bits >> _tvm.tirx.const(16, "uint32"))
    nearest = (bits + _tvm.tirx.const(0x7FFF, "uint32") + (upper & _tvm.tirx.const(1, "uint32"))) >> _tvm.tirx.const(
        16, "uint32"
    )
    found = _tvm.tirx.Select(is_number(x), nearest, upper | _tvm.tirx.const(0x40, "uint32"))
    return names.close(_tvm.tirx.reinterpret(_HALF, found.astype("uint16")))
