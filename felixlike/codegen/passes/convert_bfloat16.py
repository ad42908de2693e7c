"""Replace conversions from and to bfloat16, the upper half of a float32, by arithmetic on bits.

Input: an IRModule of (scheduled) PrimFuncs. Output: the same module without these conversions. Infinities and NaN are
preserved. TVM's own conversions do not compile if a variable, as felixlike's formulas have them, depends on one.

Kernels that reduce round their results by the processor's instruction, where it has one (`round_halves.py`): arithmetic
takes eight instructions for a vector, as many as a sum of 16 products in pairs. Subnormal results become zero there, as
in PyTorch's products. Kernels that only convert, move or combine elements preserve subnormal numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Module, Node, Stmt, TirExpr
from felixlike.codegen import matrix_functions, plain_loops
from felixlike.codegen.passes.loop_tools import reads
from felixlike.codegen.passes.round_halves import half, rounded_bits

_HALF, _BITS = "bfloat16", "uint16"

_Rounded: TypeAlias = "Callable[[TirExpr], TirExpr]"


def write_out_halves(module: Module) -> Module:
    """Return the IRModule with every conversion from or to bfloat16 in its PrimFuncs replaced."""
    return _tvm.map_functions(module, _with_conversions)


def with_integers(func: Func, rounded: _Rounded) -> Func:
    """Return a function of plain loops with 16-bit integers in place of the bfloat16 buffers that it allocates.

    TVM would turn these buffers into float32, and numbers that are stored there would not be rounded. `rounded` is that
    of `bits_of`.
    """
    allocated = [a.buffer for a in _tvm.found(func.body, _tvm.tirx.AllocBuffer) if is_half(a.buffer)]
    replaced = [(b, _tvm.tirx.decl_buffer(b.shape, _BITS, name=b.name)) for b in allocated]

    def new(buffer: Buffer) -> Any:
        return next((after for before, after in replaced if buffer.same_as(before)), None)

    def load(node: Node) -> TirExpr:
        stored = new(node.source)
        return node if stored is None else _tvm.tirx.reinterpret(node.ty.dtype, stored[tuple(node.indices)])

    def store(node: Node) -> Stmt:
        stored = new(node.buffer)
        return (
            node if stored is None else _tvm.tirx.BufferStore(stored, bits_of(node.value, rounded), list(node.indices))
        )

    def alloc(node: Node) -> Stmt:
        stored = new(node.buffer)
        return node if stored is None else _tvm.tirx.AllocBuffer(stored)

    def pointer(call: TirExpr) -> TirExpr:
        is_pointer = str(getattr(call.op, "name", "")) == "tirx.buffer_data"
        stored = new(call.args[0]) if is_pointer else None
        return call if stored is None else stored.data

    changes = (
        (_tvm.ir.TensorLoad, load),
        (_tvm.tirx.BufferStore, store),
        (_tvm.tirx.AllocBuffer, alloc),
        (_tvm.ir.Call, _reinterpreted_once),
        (_tvm.ir.Call, pointer),
    )
    body = func.body
    for change in changes if replaced else ():
        body = _tvm.structural_map(body, change)
    return func.with_body(body)


def _reinterpreted_once(call: TirExpr) -> TirExpr:
    """Take bits from where they are stored, instead of from the bfloat16 numbers that they are."""
    if not _reinterprets(call) or not _reinterprets(call.args[0]):
        return call
    return _tvm.tirx.reinterpret(call.ty.dtype, call.args[0].args[0])


def _reinterprets(value: TirExpr) -> bool:
    """Return whether an expression is another one's bits as a number of another type."""
    return str(getattr(getattr(value, "op", None), "name", "")) == "tirx.reinterpret"


def bits_of(value: TirExpr, rounded: _Rounded = rounded_bits) -> TirExpr:
    """Return the bits of a bfloat16 number. TVM would make a choice between two of them one between float32 numbers.

    `rounded` gives those of a float32 number.
    """
    if isinstance(value, _tvm.tirx.Select):
        choices = (bits_of(choice, rounded) for choice in (value.true_value, value.false_value))
        return _tvm.tirx.Select(value.condition, *choices)
    if str(getattr(getattr(value, "op", None), "name", "")) == "prim.if_then_else":
        test, *choices = value.args
        return _tvm.tirx.if_then_else(test, *(bits_of(choice, rounded) for choice in choices))
    if isinstance(value, _tvm.tirx.FloatImm):
        (word,) = struct.unpack("<I", struct.pack("<f", float(value.value)))
        return _tvm.tirx.const(word >> _tvm.bits(_HALF), _BITS)
    if isinstance(value, _tvm.tirx.Cast) and str(value.value.ty.dtype) == "float32":
        return rounded(value.value)
    return _tvm.tirx.reinterpret(_BITS, value)


def is_half(buffer: Buffer) -> bool:
    """Return whether a buffer has elements of bfloat16."""
    return str(buffer.dtype) == _HALF


def _with_conversions(func: Func) -> Func:
    """Replace the conversions of a function, and the bfloat16 buffers that it allocates."""
    blocks = _tvm.found(func.body, _tvm.s_tir.SBlock)
    if any(is_half(buffer) for block in blocks for buffer in block.alloc_buffers):
        func = plain_loops.without_blocks(func)
    rounded = half if _reduces(func) else rounded_bits

    def converted(cast: TirExpr) -> TirExpr:
        before, after = str(cast.value.ty.dtype), str(cast.ty.dtype)
        if before == _HALF and after != _HALF:
            return _widened(cast.value).astype(after)
        if after == _HALF and before != _HALF:
            return _tvm.tirx.reinterpret(_HALF, rounded(cast.value.astype("float32")))
        return cast

    return _tvm.structural_map(with_integers(func, rounded), (_tvm.tirx.Cast, converted))


def _reduces(func: Func) -> bool:
    """Return whether a function accumulates into a buffer, or into tile registers."""
    stores = _tvm.found(func.body, _tvm.tirx.BufferStore)
    return bool(matrix_functions.called(func)) or any(reads(store.value, store.buffer) for store in stores)


def _widened(value: TirExpr) -> TirExpr:
    """Convert bfloat16 to float32."""
    bits = bits_of(value).astype("uint32") << _tvm.tirx.const(16, "uint32")
    return _tvm.tirx.reinterpret("float32", bits)
