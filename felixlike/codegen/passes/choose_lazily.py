"""Read only the chosen side of a Select whose condition keeps the reads of the other side within their buffers.

    Select(i < 40, A[min(i, 39)], 0)   →   if_then_else(i < 40, A[min(i, 39)], 0)

Input: an IRModule of scheduled PrimFuncs. Output: the same module with such Selects rewritten. In a vectorized loop,
TVM reads both sides of a Select for every lane, and yet its simplifier uses the condition within each side: it removes
the limits of an index that the condition implies, and would read A[i] above. In scalar code TVM reads lazily itself.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module, TirExpr
from felixlike.codegen.passes.loop_tools import analyzer_of


def choose_lazily(module: Module) -> Module:
    """Return the IRModule with Selects replaced by if_then_else where reading both sides could leave a buffer."""
    return _tvm.map_functions(module, _with_lazy_choices)


def _with_lazy_choices(func: Func) -> Func:
    """Rewrite the Selects of a function."""
    selects = _tvm.found(func.body, _tvm.tirx.Select)
    if not any(_tvm.found(select, _tvm.ir.TensorLoad) for select in selects):
        return func
    analyzer = analyzer_of(func)

    def rewritten(select: TirExpr) -> TirExpr:
        sides = (select.condition, select.true_value), (_tvm.tirx.Not(select.condition), select.false_value)
        if any(_leaves_buffer(analyzer, *side) for side in sides):
            return _tvm.tirx.if_then_else(select.condition, select.true_value, select.false_value)
        return select

    return _tvm.structural_map(func, (_tvm.tirx.Select, rewritten))


def _leaves_buffer(analyzer: Any, condition: TirExpr, side: TirExpr) -> bool:
    """Return whether a read of one side, simplified as TVM does, is within its buffer only if the condition holds.

    Indices that are not known to be within their buffers at all, such as loaded ones, remain as they are."""
    for load in _tvm.found(side, _tvm.ir.TensorLoad):
        for index, extent in zip(load.indices, load.source.shape, strict=True):
            with analyzer.constraint_scope(condition):
                simplified = analyzer.simplify(index)
                kept = _is_within(analyzer, simplified, extent)
            if kept and not _is_within(analyzer, simplified, extent):
                return True
    return False


def _is_within(analyzer: Any, index: TirExpr, extent: TirExpr) -> bool:
    """Return whether an index is provably at least 0 and less than the extent."""
    return bool(analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent))
