"""Hide remainders by powers of two in addresses from LLVM's loop vectorizer, which takes them for plain counters.

    for b in 16: y[b] = x[b & 3]      →      for b in 16: y[b] = x[hidden(b & 3)]

Input: an IRModule that TVM has lowered for LLVM. Output: the same functions, with other indices. LLVM 22 vectorizes the
loop with loads of x[0 … 15] for CPUs with wide vectors, without a test for the wrap. `hidden` is an empty line of
assembly, which costs nothing and ends the analysis. Loops that a schedule vectorizes are unchanged.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, Stmt, TirExpr

_TEXT = """\
define linkonce_odr i{bits} @felixlike_hidden_{bits}(i{bits} %x) #0 {{
  %r = call i{bits} asm "", "=r,0"(i{bits} %x)
  ret i{bits} %r
}}
attributes #0 = {{ alwaysinline nounwind }}
"""
"""LLVM's text of the function that hides an integer."""

_WIDTHS = (32, 64)
"""Bits of integers that are hidden."""


def hidden_masks(module: Module) -> Module:
    """Return the lowered IRModule with masks in addresses hidden, in functions with loops that LLVM may vectorize."""
    return _tvm.map_functions(module, _changed)


def _changed(func: Func) -> Func:
    """Change one function."""
    serial = _tvm.tirx.ForKind.SERIAL
    if not any(loop.kind == serial for loop in _tvm.found(func.body, _tvm.tirx.For)) or not _masks(func.body):
        return func
    own = {_tvm.identity(allocation.buffer) for allocation in _tvm.found(func.body, _tvm.tirx.AllocBuffer)}
    names = _in_scalars(func.body)

    def load(node: Any) -> Any:
        indices = _hidden(node.indices, node.source, own)
        return node if indices is None else _tvm.tirx.BufferLoad(node.source, indices)

    def store(node: Any) -> Any:
        if not _is_scalar(node):
            return node
        value = _tvm.structural_map(node.value, ((_tvm.ir.TensorLoad, load),))
        indices = _hidden(node.indices, node.buffer, own) or node.indices
        return _tvm.tirx.BufferStore(node.buffer, value, indices)

    def bind(node: Any) -> Any:
        return _tvm.tirx.Bind(node.var, _with_calls(node.value)) if node.var in names else node

    changed = _tvm.structural_map(func, ((_tvm.tirx.BufferStore, store), (_tvm.tirx.Bind, bind)))
    return changed.with_body(_tvm.with_llvm_text(changed.body, *(_TEXT.format(bits=bits) for bits in _WIDTHS)))


def _is_scalar(store: Any) -> bool:
    """Return whether a statement stores one element. LLVM does not vectorize loops with others again."""
    return _tvm.lanes(store.value.ty.dtype) == 1


def _in_scalars(body: Stmt) -> set[Any]:
    """Return the variables that statements with one element use, by themselves or by the values of others."""
    names = {v for store in _tvm.found(body, _tvm.tirx.BufferStore) if _is_scalar(store) for v in _variables(store)}
    for bound in reversed(_tvm.found(body, _tvm.tirx.Bind)):
        names |= _variables(bound.value) if bound.var in names else set()
    return names


def _variables(node: Any) -> set[Any]:
    return set(_tvm.found(node, _tvm.tirx.Var))


def _hidden(indices: Any, buffer: Any, own: set[int | None]) -> list[TirExpr] | None:
    """Return indices with hidden masks; None if there are none, or if LLVM keeps the buffer in registers."""
    if _tvm.identity(buffer) in own or not any(map(_masks, indices)):
        return None
    return [_with_calls(index) for index in indices]


def _masks(expression: Any) -> list[Any]:
    """Return the remainders by powers of two in an expression."""
    return [mask for mask in _tvm.found(expression, _tvm.tirx.BitwiseAnd) if _is_remainder(mask)]


def _is_remainder(mask: Any) -> bool:
    """Return whether a node is x & (2^n - 1) of integers."""
    limit = mask.b
    is_known = str(mask.ty.dtype) in ("int32", "int64") and isinstance(limit, _tvm.tirx.IntImm)
    return is_known and int(limit.value) & (int(limit.value) + 1) == 0


def _with_calls(expression: Any) -> Any:
    """Hide the masks of an expression."""

    def hide(mask: Any) -> Any:
        dtype = str(mask.ty.dtype)
        name = f"felixlike_hidden_{_tvm.bits(dtype)}"
        return _tvm.tirx.call_pure_extern(dtype, name, mask) if _is_remainder(mask) else mask

    return _tvm.structural_map(expression, ((_tvm.tirx.BitwiseAnd, hide),))
