"""Keep the named values of formulas in buffers.

    y[i] = let v = a * a in v + v      →      m[0] = a * a; y[i] = m[0] + m[0]

Input: an IRModule that TVM has lowered for LLVM. Output: the same functions, with other statements. TVM's code
generator simplifies the value of each name with the values of all names in it written out
(src/target/llvm/codegen_llvm.cc, LetNode), which takes minutes for formulas of formulas, such as tanh(softplus(x)) in
the tile of a convolution. It does not write out loads, and LLVM turns the buffers into registers.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, Stmt
from felixlike.codegen.build import Builder, seq


def names_in_buffers(module: Module) -> Module:
    """Return the lowered IRModule with all names of formulas in buffers, except those under a condition."""
    return _tvm.map_functions(module, _changed)


def _changed(func: Func) -> Func:
    """Change one function."""
    if not _tvm.found(func.body, _tvm.tirx.Let):
        return func
    return _tvm.structural_map(func, ((_tvm.tirx.BufferStore, _with_values_before),))


def _with_values_before(store: Any) -> Stmt:
    """Write the named values of a statement to buffers before it."""
    values: dict[Any, Any] = {}

    def without_name(let: Any) -> Any:
        values[let.var] = let.value
        return let.body

    if _names_under_condition(store):
        return store
    store = _tvm.structural_map(store, ((_tvm.tirx.Let, without_name),))
    read = {name: [v for v in _tvm.found(value, _tvm.tirx.Var) if v in values] for name, value in values.items()}
    builder = Builder("int32", lanes=1, scope="local")
    loads: dict[Any, Any] = {}
    steps: list[Stmt] = []
    for name in TopologicalSorter(read).static_order():
        loads[name] = builder.cell(str(name.name), _tvm.substituted(values[name], loads), steps)
    return seq(*steps, _tvm.substituted(store, loads))


def _names_under_condition(statement: Any) -> bool:
    """Return whether a statement names values that it computes only sometimes: they may load what does not exist."""
    calls = (call for call in _tvm.found(statement, _tvm.ir.Call) if getattr(call.op, "name", "") == _IF)
    return any(_tvm.found(call, _tvm.tirx.Let) for call in calls)


_IF = "prim.if_then_else"
"""TVM's operator that computes one of its operands."""
