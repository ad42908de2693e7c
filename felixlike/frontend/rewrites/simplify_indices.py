"""Remove divisions without effect from indices.

    Y[c, h, w] = X[((w // 28 + h) // 28 + c) % 128, (w // 28 + h) % 28, w % 28]   →   X[c, h, w]     where w, h < 28

Input: a fused Relax module. Output: the same, with divisions in PrimFuncs simplified for the ranges of their block's
variables. TVM writes reshapes for any values. Indices that look non-contiguous are not vectorized.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm


def with_simple_indices(module: Any) -> Any:
    """Simplify the divisions in a module's PrimFuncs."""
    return _tvm.map_functions(module, _simplified)


def _simplified(func: Any) -> Any:
    """Simplify the divisions of a PrimFunc for the ranges of its block variables."""
    analyzer = _tvm.sym.Analyzer()
    for block in _tvm.found(func.body, _tvm.s_tir.SBlock):
        for iterator in block.iter_vars:
            if isinstance(iterator.dom.extent, _tvm.tirx.IntImm):
                analyzer.bind(iterator.var, iterator.dom)

    def simpler(division: Any) -> Any:
        simplified = analyzer.simplify(division)
        return division if _divisions(simplified) > _divisions(division) else simplified

    kinds = [(kind, simpler) for kind in (_tvm.tirx.FloorDiv, _tvm.tirx.FloorMod)]
    return _tvm.structural_map(func, kinds) if _divisions(func.body) else func


def _divisions(node: Any) -> int:
    """Count the divisions and remainders in an expression."""
    return sum(len(_tvm.found(node, kind)) for kind in (_tvm.tirx.FloorDiv, _tvm.tirx.FloorMod))
