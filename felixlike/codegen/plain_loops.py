"""Lower scheduled functions to plain loops with the first passes of TVM's own pipeline."""

from __future__ import annotations

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, Stmt


def without_blocks(func: Func) -> Func:
    """Lower a scheduled PrimFunc for a CPU to plain loops, as TVM's own pipeline (tvm/s_tir/pipeline.py) does first.

    The pipeline may run afterwards and finds this done.

    Args:
        func: A PrimFunc. If it has no blocks, it is returned unchanged.
    """
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
    """Return the IRModule without the scope attributes that TVM's own kernels (scatters) put around statements.

    They have no effect in TVM's compiler, which prints a line on stderr for each: "Unknown pragma pragma_scope".
    """
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc)]
    if not any(_is_scope(s) for func in functions for s in _tvm.found(func.body, _tvm.tirx.AttrStmt)):
        return module
    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, (_tvm.tirx.AttrStmt, _unscoped)))


def _unscoped(statement: Stmt) -> Stmt:
    """Return the body of a scope attribute, or the statement itself."""
    return statement.body if _is_scope(statement) else statement


def _is_scope(statement: Stmt) -> bool:
    """Return whether an attribute statement is a scope."""
    return bool(statement.attr_key == "pragma_scope")


def with_flat_buffers(func: Func) -> Func:
    """Flatten the buffers of a PrimFunc of plain loops to one dimension, and simplify the indices together.

    TVM's pipeline does the same, but only after it has simplified each index separately: (i + 16) mod 14 is then (i +
    2) mod 14, which no longer cancels out with (i + 16) div 14.

    Args:
        func: A PrimFunc without blocks.
    """
    return _tvm.tirx.transform.FlattenBuffer()(_tvm.IRModule({"main": func}))["main"]
