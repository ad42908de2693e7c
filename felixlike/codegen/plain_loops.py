"""Scheduled functions as plain loops, with the first of the passes that TVM's own pipeline runs."""

from __future__ import annotations

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, Stmt


def without_blocks(func: Func) -> Func:
    """A scheduled PrimFunc for a CPU as plain loops: what TVM's own pipeline (tvm/s_tir/pipeline.py) starts with.

    The pipeline may follow; it then finds this done. A function that holds no blocks any more stays as it is."""
    if not _tvm.found(func.body, _tvm.s_tir.SBlock):
        return func
    t = _tvm.s_tir.transform
    passes = [
        t.CanonicalizeLoop(),
        t.LowerInitBlock(),
        t.PlanAndUpdateBufferAllocationLocation(),
        t.ConvertBlocksToOpaque(),
        t.CompactBufferAllocation(),
        t.LowerMatchBuffer(),
        t.StmtSimplify(),
        t.LowerOpaqueBlock(),
    ]
    return _tvm.transform.Sequential(passes)(_tvm.IRModule({"main": func}))["main"]


def without_scopes(module: Module) -> Module:
    """The IRModule without the brackets that TVM's own kernels (scatters) put around sequences of statements.

    They mean nothing to its compiler, which writes a line on stderr about each: "Unknown pragma pragma_scope"."""
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc)]
    if not any(_is_scope(s) for func in functions for s in _tvm.found(func.body, _tvm.tirx.AttrStmt)):
        return module
    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, (_tvm.tirx.AttrStmt, _unscoped)))


def _unscoped(statement: Stmt) -> Stmt:
    return statement.body if _is_scope(statement) else statement


def _is_scope(statement: Stmt) -> bool:
    return bool(statement.attr_key == "pragma_scope")


def with_flat_buffers(func: Func) -> Func:
    """A PrimFunc of plain loops whose buffers have one dimension, indices simplified as they are now.

    TVM does so itself, but after it has simplified each index by itself: (i + 16) mod 14 then is (i + 2) mod 14, which
    no longer cancels out with (i + 16) div 14."""
    return _tvm.tirx.transform.FlattenBuffer()(_tvm.IRModule({"main": func}))["main"]
