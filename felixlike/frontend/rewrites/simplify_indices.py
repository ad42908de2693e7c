"""Indices without divisions that do nothing.

    Y[c, h, w] = X[((w // 28 + h) // 28 + c) % 128, (w // 28 + h) % 28, w % 28]   →   X[c, h, w]     where w, h < 28

In: a fused Relax module. Out: the same, where a division in a PrimFunc is simpler for the values its block's variables
have. TVM writes reshapes for any values; what only seems to jump is kept from vectors.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm


def with_simple_indices(module: Any) -> Any:
    """A module whose PrimFuncs divide only where that changes something."""
    return _tvm.map_functions(module, _simplified)


def _simplified(func: Any) -> Any:
    analyzer = _tvm.sym.Analyzer()
    for block in _tvm.found(func.body, _tvm.s_tir.SBlock):
        for iterator in block.iter_vars:
            if isinstance(iterator.dom.extent, _tvm.tirx.IntImm):
                analyzer.bind(iterator.var, iterator.dom)

    def simpler(division: Any) -> Any:
        found = analyzer.simplify(division)
        return division if _divisions(found) > _divisions(division) else found

    kinds = [(kind, simpler) for kind in (_tvm.tirx.FloorDiv, _tvm.tirx.FloorMod)]
    return _tvm.structural_map(func, kinds) if _divisions(func.body) else func


def _divisions(node: Any) -> int:
    return sum(len(_tvm.found(node, kind)) for kind in (_tvm.tirx.FloorDiv, _tvm.tirx.FloorMod))
